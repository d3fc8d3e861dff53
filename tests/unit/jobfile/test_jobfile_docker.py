"""``docker:`` of a job file: what it says, and what is wrong with which line."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import pytest

from launcher.errors import JobError
from launcher.jobfile import DockerKeys, parse
from launcher.jobfile.sizes import parse_size

HEAD = "command: t.py\nroles: {worker: 2, ps: 1}\n"
FULL = """\
docker:
  image: tf:1
  mounts: ['../data:/data:ro', ~/x]
  no_mount: false
  read_only: yes
  memory: {worker: 2g, ps: 512m}
  cpus: 1.5
  user: '1000:1000'
  pull: always
  gpus: 1
  keep: true
  options:
    shm_size: 1g
    ulimits: [memlock=-1, nofile=1024:2048, 'core=0:-1']
    cap_add: SYS_NICE
    cap_drop: [NET_RAW]
    devices: ['/dev/fuse:/dev/fuse:rw']
    tmpfs: ['/scratch:size=1g']
    extra_hosts: ['data:10.0.0.7']
    ipc: host
    security_opt: [seccomp=unconfined]
    pids_limit: 1000
"""


def test_everything() -> None:
    found = parse(HEAD + FULL, "j")
    assert found.docker == DockerKeys(
        image="tf:1", mounts=("../data:/data:ro", "~/x"), read_only=True,
        memory=(("worker", 2 << 30), ("ps", 512 << 20)), cpus=(("", 1.5),), user="1000:1000", pull="always",
        gpus=1, keep=True, source="j:3",
        options=(
            ("shm_size", ("1g",)), ("ulimits", ("memlock=-1", "nofile=1024:2048", "core=0:-1")), ("cap_add", ("SYS_NICE",)),
            ("cap_drop", ("NET_RAW",)), ("devices", ("/dev/fuse:/dev/fuse:rw",)), ("tmpfs", ("/scratch:size=1g",)),
            ("extra_hosts", ("data:10.0.0.7",)), ("ipc", ("host",)), ("security_opt", ("seccomp=unconfined",)),
            ("pids_limit", ("1000",)),
        ),
    )  # fmt: skip
    assert [(role.name, role.gpus) for role in found.job.roles] == [("worker", 1), ("ps", None)]


def test_a_limit_of_a_role_without_a_task() -> None:
    found = parse("command: t.py\nroles: {worker: 1, ps: 0}\ndocker: {image: tf, memory: {ps: 1g}}", "j")
    assert found.docker.memory == (("ps", 1 << 30),)


@pytest.mark.parametrize("roles", ["rolez: {worker: 1}", "roles: worker"])
def test_roles_that_nobody_can_read_make_no_limit_wrong(roles: str) -> None:
    with pytest.raises(JobError) as caught:
        parse(f"command: t.py\n{roles}\ndocker: {{image: tf, memory: {{worker: 1g}}}}", "j")
    assert [fault.where for fault in caught.value.faults] == ["j:2"]


def test_short_forms() -> None:
    assert parse(HEAD, "j").docker == DockerKeys()
    assert parse(HEAD + "docker: tf\n", "j").docker == DockerKeys(image="tf", source="j:3")
    found = parse(HEAD + "docker: {image: tf, mounts: a b, memory: 1g}\n", "j").docker
    assert (found.mounts, found.memory) == (("a b",), (("", 1 << 30),))


def test_gpus_of_a_role_are_its_own() -> None:
    text = "command: t.py\nroles: {worker: {count: 2, gpus: 0}, chief: 1}\ndocker: {image: tf, gpus: 2}\n"
    assert [role.gpus for role in parse(text, "j").job.roles] == [0, 2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("docker: [tf]", "j:3: docker is a list; expected an image, or a mapping with image:"),
        ("docker:", "j:3: docker has no value; expected an image, or a mapping with image:"),
        ("docker: -x", 'j:3: docker is "-x"; expected the name of an image'),
        ("docker: {}", "j:3: docker has no image; expected image:"),
        ("docker: {imge: tf}", 'j:3: unknown key "imge"; did you mean "image"?'),
        ("docker: {image: tf, pull: often}", 'j:3: pull is "often"; expected one of missing, always, never'),
        ("docker: {image: tf, memory: much}", 'j:3: memory is "much"; expected a size such as 512m or 2g'),
        ("docker: {image: tf, memory: 1m}", 'j:3: memory is "1m"; expected 6m or more'),
        ("docker: {image: tf, memory: {wroker: 1g}}", "j:3: memory: there is no role 'wroker'; did you mean \"worker\"?"),
        ("docker: {image: tf, cpus: none}", 'j:3: cpus is "none"; expected a number of CPUs such as 2 or 0.5'),
        ("docker: {image: tf, cpus: [1]}", "j:3: cpus is a list; expected one value"),
        ("docker: {image: tf, gpus: some}", 'j:3: gpus is "some"; expected a whole number'),
        ("docker: {image: tf, read_only: perhaps}", 'j:3: read_only is "perhaps"; expected true or false'),
        ("docker:\n  image: tf\n  options: [x]", "j:5: options is a list; expected a mapping, as in shm_size: 1g"),
        ("docker: {image: tf, memory: 999999999999999t}", 'j:3: memory is "999999999999999t"; expected a size below 8388608t'),
        ("docker:\n  image: tf\n  read_only: true\n  no_mount: true", 'j:5: "no_mount" and "read_only" both; expected one of them'),
    ],
)  # fmt: skip
def test_faults(text: str, told: str) -> None:
    with pytest.raises(JobError) as caught:
        parse(HEAD + text + "\n", "j")
    assert told in str(caught.value)


def test_all_faults_at_once() -> None:
    with pytest.raises(JobError) as caught:
        parse(HEAD + "docker:\n  imag: tf\n  memory: much\n  options:\n    ipc: all\n", "j")
    assert [fault.where for fault in caught.value.faults] == ["j:4", "j:4", "j:5"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1k", 1024),
        ("2 GiB", 2 << 30),
        ("1.5t", 3 << 39),
        ("64MB", 64 << 20),
        ("8388607t", 8388607 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
