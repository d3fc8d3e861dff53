"""Containers on the hosts of a hostfile, each by its host's own engine."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli.dockerowner import labels
from tests.conftest import Launch
from tests.docker.conftest import jobs
from tests.docker.engine import BASE, Engine
from tests.docker.host_engines import DockerHost, docker_hosts
from tests.docker.test_job import BOTH, FETCH, SERVE
from tests.local.seeing import last_run
from tests.ssh.host import until
from tests.ssh.lab import Lab

Site = tuple[Lab, list[DockerHost]]

#: Binds a port as any program would.
BIND = "import socket, sys; socket.socket().bind(('', int(sys.argv[1])))"
#: Shared memory in KiB, open files, another file system in KiB.
LOOK = "echo $(df -k --output=size /dev/shm | tail -1) $(ulimit -n) $(df -k --output=size /scratch | tail -1)"
PATH = ("--change", "ENV PATH=/usr/bin")

#: Case -> (options, program, exit code).
CASES: dict[str, tuple[list[str], list[str], int]] = {
    "success": ([], ["true"], 0),
    "its own code": ([], ["sh", "-c", "exit 7"], 7),
    "killed by a signal": ([], ["sh", "-c", "kill -11 $$; sleep 60"], 139),
    "not found": ([], ["no-such-program-anywhere"], 127),
    "the first of several": (["--workers", "4"], ["sh", "-c", "[ $TASK_INDEX = 3 ] && exit 9; sleep 60"], 9),
    "a ps is stopped": (
        ["--ps", "1", "--workers", "1"],
        ["sh", "-c", "[ $JOB_NAME = ps ] && sleep 60; true"],
        0,
    ),
    "too long": (["--timeout", "1"], ["sleep", "60"], 124),
}

#: The beginning of an executable of another kind of machine: 64-bit, little-endian, SPARC.
FOREIGN = b"\x7fELF\2\1\1".ljust(16, b"\0") + bytes([2, 0, 43, 0, 1, 0, 0, 0]).ljust(48, b"\0")
#: Case -> (files of an image, what is said of it).
IMAGES: dict[str, tuple[dict[str, bytes], str]] = {
    "no Python": ({"etc/motd": b"nothing here"}, "there is no python3 in the image launch-test-image"),
    "another machine": ({"usr/bin/python3": FOREIGN}, "launch-test-image is not for this kind of machine"),
}


@pytest.fixture(scope="session")
def two_hosts() -> Iterator[Site]:
    """As the last test left them."""
    with docker_hosts(2) as site:
        yield site


@pytest.fixture
def hosts(two_hosts: Site, launch: Launch) -> Iterator[list[DockerHost]]:
    """Healthy. Nothing may be left on them."""
    lab, hosts = two_hosts
    for host in hosts:
        host.heal()
    lab.move_in(launch.home)
    yield hosts
    try:
        until(lambda: not [what for host in hosts for what in host.left()], 10, "nothing is left")
    except TimeoutError:
        pytest.fail("left behind:\n  " + "\n  ".join(what for host in hosts for what in host.left()))


@pytest.fixture
def hostfile(hosts: list[DockerHost], tmp_path: Path) -> str:
    """Names the two, with room for two tasks each."""
    path = tmp_path / "two.yaml"
    lines = (f"  - {{name: {one.name}, address: {one.host.address}, slots: 2}}\n" for one in hosts)
    path.write_text("hosts:\n" + "".join(lines))
    return str(path)


def words(hostfile: str, *more: str) -> list[str]:
    """The options of a launch there."""
    return ["--hosts", hostfile, "--docker", BASE, *more]


def test_a_container_on_each_host(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    """Its network is the host's, its first process the agent; tasks find each other at the hosts' addresses."""
    options = ["--ps", "1", "--workers", "2", "-x", f"SERVE={SERVE}", "-x", f"FETCH={FETCH}", "--no-mount"]
    ended = launch(*words(hostfile, *options, "--", "sh", "-c", BOTH), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    said = {line.partition("| ")[2] for line in ended.out.splitlines() if " | " in line}
    served = next(one for one in hosts if f"fetched {one.name} from {one.host.address}" in ended.out)
    assert f"fetched {served.name} from {served.host.address} on node1" in said
    assert f"fetched {served.name} from {served.host.address} on node2" in said
    run = last_run(launch)
    assert run.states() == {"worker/0": "succeeded", "worker/1": "succeeded", "ps/0": "stopped"}
    assert {task["host"] for task in run.report["tasks"]} == {"node1", "node2"}
    assert " worker/0 | " in ended.out


def test_what_the_engine_knows_and_who_holds_the_ports(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    script = "cat /proc/1/comm; echo $TASK_ADDRESS $TOKEN; exec sleep 600"
    options = ["--workers", "2", "-x", "TOKEN=abracadabra", "--memory", "512m", "--cpus", "1.5", "--no-mount"]
    started = launch.start(*words(hostfile, *options, "--", "sh", "-c", script), cwd=tmp_path)
    started.until(lambda it: it.out.count("abracadabra") == 2, 40)
    assert started.out.count("| launch-guardian") == 2
    job = jobs(launch)[0]
    assert [one.containers() for one in hosts] == [[f"tf-launcher-{job}-{one.name}"] for one in hosts]
    text = hosts[0].engine.docker("inspect", f"tf-launcher-{job}-node1")
    found = json.loads(text)[0]
    assert "abracadabra" not in text
    assert "sleep" not in text
    assert found["HostConfig"]["NetworkMode"] == "host"
    assert (found["HostConfig"]["Memory"], found["HostConfig"]["NanoCpus"]) == (512 << 20, 1_500_000_000)
    assert found["Config"]["Labels"]["tf-launcher.job"] == job
    port = re.search(rf"{re.escape(hosts[0].host.address)}:(\d+)", started.out)
    assert port is not None
    taken = hosts[0].host.run(["python3", "-c", BIND, port[1]], check=False)
    assert b"Address already in use" in taken.stderr
    started.send(2)
    assert started.wait(40).code == 130


@pytest.mark.parametrize("case", CASES)
def test_exit_codes(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path, case: str):
    options, program, code = CASES[case]
    ended = launch(
        *words(hostfile, "--no-mount", "--grace", "1", *options, "--", *program), cwd=tmp_path, timeout=60
    )
    assert ended.code == code, ended.err


def test_files_that_travel(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    """What is synced is mounted, what is written there can be fetched, and is whose we are there."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "program.py").write_text(
        "import os, sys\nopen('it', 'w').write('by ' + os.environ['TASK_INDEX'])\n"
    )
    options = ["--workers", "2", "--sync", ".", "--collect", "it"]
    ended = launch(*words(hostfile, *options, "program.py"), cwd=work, timeout=60)
    assert ended.code == 0, ended.err
    found = sorted(path.read_text() for path in last_run(launch).root.glob("collected/*/it"))
    assert found == ["by 0", "by 1"]


def test_folders_of_the_hosts(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    for one in hosts:
        one.host.run(["mkdir", "-p", "work", "data"])
        one.host.run(["sh", "-c", f"echo {one.name} >data/name"])
    script = "cat /data/name ~/data/name $HOST_HOME/data/name 2>/dev/null; pwd; touch x /data/x 2>&1 || true"
    options = ["--workers", "2", "--workdir", "~/work", "--mount", "~/data:/data", "--read-only"]
    ended = launch(*words(hostfile, *options, "--", "sh", "-c", script), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    for one in hosts:
        said = [line.partition("| ")[2] for line in ended.out.splitlines() if line.startswith(one.name)]
        assert one.name in said
        assert f"{one.host.home}/work" in said
        assert "touch: cannot touch 'x': Read-only file system" in said
        assert one.host.there(one.host.home / "data/x").exists()
        assert not one.host.there(one.host.home / "work/x").exists()
        one.host.run(["rm", "-r", "work", "data"])


def test_a_folder_that_is_not_there(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--mount", "/no/such", "--workers", "4"]
    ended = launch(*words(hostfile, *options, "true"), cwd=tmp_path, timeout=60)
    assert ended.code == 125
    for one in hosts:
        assert f"{one.name}: there is no /no/such to mount" in ended.err
    ended = launch(*words(hostfile, "--workdir", "/no/such", "true"), cwd=tmp_path, timeout=60)
    assert ended.code == 125, ended.err
    assert "/no/such" in ended.err


def test_a_launcher_that_is_killed(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    options = ["--workers", "2", "--no-mount"]
    started = launch.start(*words(hostfile, *options, "--", "sh", "-c", script), cwd=tmp_path)
    started.until(lambda it: it.out.count("up") == 2, 40)
    started.kill()
    since = time.monotonic()
    until(lambda: not any(one.left() for one in hosts), 10, "all is over")
    print(f"over after {time.monotonic() - since:.1f} s")


def test_a_porter_that_is_killed(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    """With `docker run`, too: the container sees the end of its stdin."""
    options = ["--workers", "2", "--no-mount"]
    started = launch.start(
        *words(hostfile, *options, "--", "sh", "-c", "echo up; exec sleep 600"), cwd=tmp_path
    )
    started.until(lambda it: it.out.count("up") == 2, 40)
    its = [it.pid for it in hosts[0].host.processes() if "tf-porter" in it.argv or "docker run" in it.argv]
    assert len(its) >= 2, hosts[0].host.processes()
    hosts[0].host.run(["kill", "-KILL", *map(str, its)])
    until(lambda: not hosts[0].containers(), 10, "its container is gone")
    ended = started.wait(60)
    assert ended.code == 125
    assert "host node1 is lost" in ended.err


def test_what_a_killed_launch_left_is_removed(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    for one, name, marks in ((hosts[0], "dead", of_the_dead()), (hosts[1], "mine", labels())):
        every = [word for label, value in marks.items() for word in ("--label", f"{label}={value}")]
        one.engine.docker("create", "--name", name, *every, BASE, "true")
    ended = launch(*words(hostfile, "--workers", "4", "--no-mount", "true"), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert "removed what a killed launch had left: dead on node1" in ended.err
    assert [one.containers() for one in hosts] == [[], ["mine"]]
    hosts[1].engine.docker("rm", "mine")


def test_kept_containers(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--keep", "--workers", "4", "--no-mount"]
    ended = launch(
        *words(hostfile, *options, "--", "sh", "-c", "echo x >/tmp/found"), cwd=tmp_path, timeout=60
    )
    assert ended.code == 0, ended.err
    name = f"tf-launcher-{jobs(launch)[0]}-node1"
    assert f"{name} on node1" in ended.err
    assert "A /tmp/found" in hosts[0].engine.docker("diff", name)
    dry = launch("clean", "--hosts", hostfile, "--dry-run", timeout=60)
    assert f"would remove container {name} on node1" in dry.out
    cleaned = launch("clean", "--hosts", hostfile, timeout=60)
    assert cleaned.code == 0, cleaned.err
    assert f"removed container {name} on node1" in cleaned.out
    assert launch("clean", "--hosts", hostfile, timeout=60).out == "nothing is left\n"


def test_a_connection_that_breaks(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    script = "echo up; while ! [ -e /tmp/go-on ]; do sleep 0.1; done; echo done"
    options = ["--workers", "1", "--no-mount"]
    started = launch.start(*words(hostfile, *options, "--", "sh", "-c", script), cwd=tmp_path)
    started.until(lambda it: "up" in it.out, 40)
    assert hosts[0].host.kill_sshd_sessions()
    started.until(lambda it: "connected again" in it.err, 20)
    hosts[0].engine.docker("exec", hosts[0].containers()[0], "touch", "/tmp/go-on")
    ended = started.wait(40)
    assert ended.code == 0, ended.err
    assert last_run(launch).log("worker/0") == b"up\ndone\n"


def test_a_host_that_is_cut_off(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--workers", "4", "--lease", "6", "--no-mount"]
    started = launch.start(
        *words(hostfile, *options, "--", "sh", "-c", "echo up; exec sleep 600"), cwd=tmp_path
    )
    started.until(lambda it: it.out.count("up") == 4, 40)
    hosts[1].host.cut()
    ended = started.wait(60)
    assert ended.code == 125
    assert "host node2 is lost" in ended.err
    until(lambda: not hosts[1].left(), 10, "all is over there")


# ---------------------------------------------------------------------- what goes wrong


def test_a_container_that_is_killed(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--workers", "4", "--no-mount"]
    started = launch.start(
        *words(hostfile, *options, "--", "sh", "-c", "echo up; exec sleep 600"), cwd=tmp_path
    )
    started.until(lambda it: it.out.count("up") == 4, 40)
    hosts[1].engine.docker("kill", hosts[1].containers()[0])
    ended = started.wait(30)
    assert ended.code == 125
    assert "host node2 is lost: its container was killed by SIGKILL" in ended.err


def test_a_task_that_exceeds_its_memory(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path
):
    code = "import os, time\nif os.environ['TASK_INDEX'] == '1': b = bytearray(500 << 20)\ntime.sleep(60)"
    options = ["--workers", "2", "--memory", "64m", "--no-mount"]
    ended = launch(*words(hostfile, *options, "--", "python3", "-c", code), cwd=tmp_path, timeout=60)
    assert ended.code == 137
    failure = last_run(launch).report["failure"]
    assert (failure["task"], failure["reason"]) == ("worker/1", "out of memory")
    assert "its limit is 128 MiB" in failure["text"]


@pytest.mark.parametrize("case", IMAGES)
def test_images_that_will_not_do(
    hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path, case: str
):
    files, told = IMAGES[case]
    for one in hosts:
        one.engine.docker("import", *PATH, "-", "launch-test-image", stdin=tar(files))
    try:
        options = ["--docker", "launch-test-image", "--workers", "4", "--no-mount"]
        ended = launch("--hosts", hostfile, *options, "true", cwd=tmp_path, timeout=60)
    finally:
        for one in hosts:
            one.engine.docker("rmi", "-f", "launch-test-image")
    assert ended.code == 125
    for one in hosts:
        assert f"{one.name}" in ended.err
    assert told in ended.err


def test_an_image_that_is_not_there(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--docker", "127.0.0.1:1/none:1", "--workers", "4", "--no-mount"]
    ended = launch("--hosts", hostfile, *options, "--pull", "never", "true", cwd=tmp_path, timeout=60)
    assert ended.code == 125
    for one in hosts:
        assert (
            f"{one.name}: there is no image 127.0.0.1:1/none:1 there, and --pull never forbids" in ended.err
        )
    ended = launch("--hosts", hostfile, *options, "true", cwd=tmp_path, timeout=60)
    assert ended.code == 125
    assert "launch: pulling the image 127.0.0.1:1/none:1 on node1, node2" in ended.err
    for one in hosts:
        assert f"{one.name}: the image 127.0.0.1:1/none:1 can't be pulled: " in ended.err


def test_gpus_that_the_engine_can_not_give(hosts: list[DockerHost], launch: Launch, tmp_path: Path):
    path = tmp_path / "gpus.yaml"
    path.write_text("hosts:\n  - {name: node1, gpus: [4, 5]}\n")
    ended = launch(*words(str(path), "--workers", "2", "--gpus", "1", "--no-mount", "true"), timeout=60)
    assert ended.code == 125
    assert "the engine can't give GPUs to containers: install the NVIDIA Container Toolkit there" in ended.err


def test_an_engine_that_is_not_there(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    hosts[0].stop()
    hosts[1].host.program("docker", None)
    try:
        ended = launch(*words(hostfile, "--workers", "4", "--no-mount", "true"), cwd=tmp_path, timeout=60)
    finally:
        hosts[1].stop()
        hosts[1].host.heal()
        hosts[0].start()
        hosts[1].start()
    assert ended.code == 125
    assert "node1: no Docker engine answers there: is it running?" in ended.err
    assert "node2: there is no docker command there" in ended.err


def test_an_engine_that_is_stopped(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    options = ["--workers", "4", "--no-mount"]
    started = launch.start(
        *words(hostfile, *options, "--", "sh", "-c", "echo up; exec sleep 600"), cwd=tmp_path
    )
    started.until(lambda it: it.out.count("up") == 4, 40)
    hosts[0].stop()
    ended = started.wait(60)
    hosts[0].start()
    assert ended.code == 125
    assert "host node1 is lost" in ended.err
    print(ended.err)


# ---------------------------------------------------------------------- other ways to ask for it


def test_this_machine_among_others(
    docker: Engine, two_hosts: Site, hosts: list[DockerHost], launch: Launch, tmp_path: Path
):
    path = tmp_path / "mixed.yaml"
    here = f"{{name: localhost, address: {two_hosts[0].address}, slots: 1}}"
    path.write_text(f"hosts:\n  - {here}\n  - {{name: node1, address: {hosts[0].host.address}, slots: 1}}\n")
    options = ["--ps", "1", "--workers", "1", "-x", f"SERVE={SERVE}", "-x", f"FETCH={FETCH}", "--no-mount"]
    ended = launch(*words(str(path), *options, "--", "sh", "-c", BOTH), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert {task["host"] for task in last_run(launch).report["tasks"]} == {"localhost", "node1"}
    assert "fetched " in ended.out
    assert docker.lines("ps", "-aq", "--filter", f"label=tf-launcher.job={jobs(launch)[0]}") == []


def test_a_job_file(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    (tmp_path / "job.yaml").write_text(
        f"docker:\n  image: {BASE}\n  no_mount: true\n  memory: {{worker: 256m}}\n"
        "  options: {shm_size: 32m, ulimits: ['nofile=1234:2345'], tmpfs: '/scratch:size=1m', cap_add: SYS_NICE}\n"
        f"hosts: two.yaml\ncommand: [sh, -c, '{LOOK}']\nroles:\n  worker: 2\n"
    )
    ended = launch(tmp_path / "job.yaml", cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert ended.out.count("32768 1234 1024") == 2


def test_a_dry_run(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    ended = launch(*words(hostfile, "--workers", "2", "--dry-run", "train.py"), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert "worker/1 on node2" in ended.out
    assert "python3 train.py" in ended.out


def of_the_dead() -> dict[str, str]:
    """The labels of a launcher that has ended."""
    code = "import json; from launcher.cli.dockerowner import labels; print(json.dumps(labels()))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=30, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def tar(files: dict[str, bytes]) -> bytes:
    """A tar archive of executables."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
    return into.getvalue()
