"""A container as a command line, and as the SDK has it."""

from __future__ import annotations

import shlex

from launcher.jobfile.containers import OPTIONS as OF_JOB_FILES
from launcher.transport.bootstrap import LOADER
from launcher.transport.docker.command import run_command
from launcher.transport.docker.options import OPTIONS, as_settings, as_words
from launcher.transport.docker.settings import Container, Mount

FULL = Container(
    "node1", "img:1", "/opt/python3",
    (Mount("/a", "/b", True), Mount('/odd, "path"', "/c")),
    user="12:34", memory=64 << 20, cpus=0.5, gpus=("2", "3"),
    options=(("shm_size", ("1024",)), ("cap_add", ("SYS_NICE", "SYS_PTRACE"))),
)  # fmt: skip


def test_everything():
    found = run_command(FULL, "it", {"a": "b c"}, keep=False)
    assert shlex.join(found[:-1]) == (
        "docker run --interactive --name it --network host --log-driver none --rm --label 'a=b c' "
        "--user 12:34 --memory 67108864 --memory-swap 67108864 --cpus 0.5 --gpus '\"device=2,3\"' "
        "--mount type=bind,source=/a,target=/b,readonly "
        '--mount \'type=bind,"source=/odd, ""path""",target=/c\' '
        "--shm-size 1024 --cap-add SYS_NICE --cap-add SYS_PTRACE "
        "--entrypoint /opt/python3 img:1 -E -s -S -c"
    )
    assert found[-1] == LOADER


def test_hardly_anything():
    found = run_command(Container("node1", "img", "python3"), "it", {}, keep=True)
    assert "--rm" not in found
    assert found[-8:-1] == ["--entrypoint", "python3", "img", "-E", "-s", "-S", "-c"]


def test_a_job_file_and_the_engine_know_the_same_settings():
    assert list(OPTIONS) == list(OF_JOB_FILES)


def test_settings_for_the_sdk():
    options = (
        ("shm_size", ("1048576",)), ("ulimits", ("nofile=1:2", "core=-1")), ("cap_add", ("SYS_NICE",)),
        ("tmpfs", ("/a", "/b:size=1m,mode=700")), ("ipc", ("host",)), ("extra_hosts", ("a:1.2.3.4",)),
    )  # fmt: skip
    found = as_settings(options)
    assert [(it.name, it.soft, it.hard) for it in found.pop("ulimits")] == [
        ("nofile", 1, 2),
        ("core", -1, -1),
    ]
    assert found == {
        "shm_size": 1 << 20,
        "cap_add": ["SYS_NICE"],
        "tmpfs": {"/a": "", "/b": "size=1m,mode=700"},
        "ipc_mode": "host",
        "extra_hosts": ["a:1.2.3.4"],
    }
    assert as_words(options)[:6] == ["--shm-size", "1048576", "--ulimit", "nofile=1:2", "--ulimit", "core=-1"]
