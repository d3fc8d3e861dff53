"""What every test gets: the installed command, a clean environment, and a check that nothing is left.

Whatever a test starts inherits ``LAUNCH_TEST_MARK`` with a value of that test alone, so that
what it leaves behind can be found on the whole machine, whatever its parent is by then.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis
import pytest

from launcher.__main__ import _run
from tests.seeing import MARK, command_line, kill, looks, proc, stat_field

if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster as Kubernetes
    from tests.slurm.cluster import Cluster
    from tests.storage.servers import Servers
    from tests.storage.stores import S3, Gcs, Hdfs

assert os.path.exists("/proc/thread-self/children"), "the kernel was built without CONFIG_PROC_CHILDREN"

# numpy, once a test module imports it, would start a thread for each core, and a process of several threads
# cannot be forked into an agent. No task does heavy arithmetic, so it may go on to them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# A ``python3`` of pyenv is a shell script that finds the real one, for 50 ms of a processor. Tests start
# thousands of them.
with open(shutil.which("python3") or sys.executable, "rb") as python3:
    is_script = python3.read(2) == b"#!"
if is_script:
    os.environ["PATH"] = f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"

# Tests in the background (``nohup``, ``make test &``) inherit them as ignored, and so would every launch that
# they start: it respects that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Many tests share few cores, so the time that an example takes says nothing.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

#: Seconds that what a test started may take to be gone after it, as `looks` counts them.
_GONE_WITHIN = 2.0

#: What the machine of a developer may have set and a test must not depend on.
_FOREIGN = (
    "TF_CONFIG", "CLUSTER_SPEC", "JOB_NAME", "TASK_INDEX", "TASK_ADDRESS", "NO_COLOR", "FORCE_COLOR",
    "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "TMUX", "TMUX_PANE", "CUDA_VISIBLE_DEVICES",
    "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "SLURM_JOB_ID", "SLURM_STEP_ID", "GITHUB_ACTIONS",
)  # fmt: skip


def examples(most: int, part: int = 4) -> int:
    """Return how many random examples a test tries.

    Args:
        most: The number of `make soak`.
        part: `make test` tries one of this many.
    """
    return most if os.environ.get("LAUNCH_SOAK") else most // part


def is_about_waiting(line: str) -> bool:
    """Whether a line says what ``launch`` waits for, as it may on a busy machine."""
    return line.removeprefix("launch: ").startswith(("waiting for ", "still waiting, "))


class Leaks(NamedTuple):
    """What there is: processes by number and start, threads by name, open files by number and target.

    A process of a fixture that lasts longer may call another program, or name itself anew, during a test.
    """

    processes: Mapping[tuple[int, bytes], str]
    threads: frozenset[str]
    files: frozenset[str]

    def since(self, before: Leaks) -> list[str]:
        """What is there now and was not before."""
        processes = [text for process, text in self.processes.items() if process not in before.processes]
        return sorted([*processes, *(self.threads - before.threads), *(self.files - before.files)])


def leaks(mark: str = "", known: Collection[int] = ()) -> Leaks:
    """Return everything that a test could leave behind.

    Args:
        mark: The mark of the test. Without one, only what this process itself started is there.
        known: Processes that cannot have the mark, because they are older than the test.
    """
    marked = _marked(mark, known) if mark else ()
    processes = dict(filter(None, map(_process, {*marked, *_descendants(os.getpid())})))
    threads = frozenset(f"thread {t.name} ({t.ident})" for t in threading.enumerate())
    return Leaks(processes, threads, frozenset(_files()))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _marked(mark: str, known: Collection[int] = ()) -> Iterator[int]:
    """The processes of the machine that inherited the mark, this one excepted."""
    entry = f"{MARK}={mark}".encode()
    for pid in _pids():
        if pid not in known and pid != os.getpid() and entry in proc(pid, "environ"):
            yield pid


def _descendants(pid: int) -> Iterator[int]:
    """All processes below a process, zombies too: a test that starts one waits for it.

    Those of an engine are not among them: it unpacks an image for another test, perhaps.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # It has just ended.
        return
    for child in b"".join(proc(pid, f"task/{thread}/children") for thread in threads).split():
        yield int(child)
        if proc(int(child), "comm") != b"dockerd\n":
            yield from _descendants(int(child))


def _process(pid: int) -> tuple[tuple[int, bytes], str] | None:
    """A process by number and start, and a line about it; ``None`` if it has just ended."""
    state, start = stat_field(pid, 3), stat_field(pid, 22)
    text = f"process {pid} ({'zombie' if state == b'Z' else command_line(pid) or 'kernel'})"
    return ((pid, start), text) if start else None


def _files() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the one that listed the folder
            continue
        yield f"open file {fd} -> {target}"


def pytest_collection() -> None:
    """Do not collect garbage meanwhile: all objects stay, and it would take a sixth of the time."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit the time of tests without their fixtures where the first one waits for an engine or a cluster."""
    waiting = ("tests/docker/", "tests/e2e/", "tests/kubernetes/")
    for item in items:
        waits = item.nodeid.startswith(waiting) or "servers" in getattr(item, "fixturenames", ())
        if waits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300, func_only=True))


def pytest_collection_finish() -> None:
    """Collect garbage again, but not among the objects that exist now."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Which test runs next, and in which process, when several run side by side (pytest-xdist).

    Tests that share what takes long to make share a process, and come first. Then come tests of all folders
    in turn, as some wait and some compute; trainings with TensorFlow, which compute most, have turns
    of their own. Those of a folder are mixed, as tests of one module often wait for long. Short tests of pure
    logic come last, so that all processes end at about the same time.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _shared_by(nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            # It would count the tests of all scopes again after each test, also of those that are done.
            work = self.assigned_work[node]
            for scope in [scope for scope, tests in work.items() if all(tests.values())]:
                del work[scope]

        def schedule(self) -> None:
            super().schedule()
            folders: dict[str, list[str]] = {}
            for scope in self.workqueue:
                trains = "tensorflow" in scope or "test_examples_fed" in scope
                folders.setdefault("trainings" if trains else scope.split("/")[1], []).append(scope)
            for scopes in folders.values():
                scopes.sort(key=lambda scope: (-len(self.workqueue[scope]), -zlib.crc32(scope.encode())))
            turns = {
                scope: (folder in ("unit", "histories"), place / len(scopes))
                for folder, scopes in folders.items()
                for place, scope in enumerate(scopes)
            }
            for scope in sorted(turns, key=lambda scope: turns[scope]):
                self.workqueue.move_to_end(scope)

    return Scheduler(config, log)


def _shared_by(nodeid: str) -> str:
    """What shares a process with this test: sets of tests with engines on hosts or Slurm, six modules."""
    if "tests/soak/test_survival" in nodeid:  # several TensorFlows each: one test at a time for each place
        return "tests/soak/test_survival " + re.split(r"[-\[]", nodeid.rstrip("]"))[-1]
    if "tests/soak/test_kubernetes" in nodeid:  # a cluster for each victim
        return nodeid.rpartition("-")[0] or nodeid
    on_hosts = ("docker/test_hosts", "docker/test_elsewhere", "docker/test_api", "[docker-ssh")
    if any(part in nodeid for part in on_hosts):
        return "tests/docker/hosts"
    if any(part in nodeid for part in ("tests/slurm/", "soak/test_slurm", "[slurm")):  # a cluster for each
        part = next((part for part in ("test_inside", "test_batch", "contract") if part in nodeid), "others")
        return "tests/slurm/test_inside" if "/e2e/" in nodeid else f"tests/slurm/{part}"
    modules = (
        "docker/test_engines", "docker/test_dockerfile", "kubernetes/test_cut_off", "local/test_installed",
        "local/test_site", "tests/test_public",
    )  # fmt: skip
    if any(module in nodeid for module in modules):
        return nodeid.partition("::")[0]
    return nodeid


#: How many processes this one has started, by the audit events of Python.
_STARTED = [0]


def _count(event: str, _: tuple[object, ...]) -> None:
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"):
        _STARTED[0] += 1


sys.addaudithook(_count)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Fail a test that leaves processes, threads or open files behind; end its processes."""
    mark = uuid.uuid4().hex
    for name in _FOREIGN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(MARK, mark)
    before, started, known = leaks(), _STARTED[0], frozenset(_pids())
    yield mark
    if left := _settled(lambda: leaks(mark if _STARTED[0] > started else "", known).since(before)):
        _end(mark)
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


def _settled(found: Callable[[], list[str]]) -> list[str]:
    """What is still found when nothing should be left."""
    left = found()
    if left:
        gc.collect()  # what only a cycle of objects holds is no leak
        for _ in looks(_GONE_WITHIN):
            if not (left := found()):
                break
    return left


def _end(mark: str) -> None:
    """Kill what carries the mark, and nothing else, so that the next test finds a clean machine."""
    for _ in range(5):
        for pid in _marked(mark):
            kill(pid)


class Ended(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    stdout: bytes
    stderr: bytes
    #: Seconds from its start to its end.
    elapsed: float

    @property
    def out(self) -> str:
        """Its standard output as text."""
        return self.stdout.decode(errors="replace")

    @property
    def err(self) -> str:
        """Its standard error as text."""
        return self.stderr.decode(errors="replace")

    def expected(self, code: int | None) -> Ended:
        """This, unless an exit code is given and it is not that one."""
        written = f"{self.out[-4000:]}\n{self.err[-4000:]}"
        assert code in (None, self.code), f"exit code {self.code}; it wrote:\n{written}"
        return self

    @property
    def said(self) -> list[str]:
        """The lines of its standard error that it would print on a quiet machine, too."""
        return [line for line in self.err.splitlines() if not is_about_waiting(line)]


class Started:
    """A command that runs: signal it, look at its output, wait for its end."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, since: float) -> None:
        self.process = process
        self.pid = process.pid
        self._folder = folder
        self._since = since

    @property
    def out(self) -> str:
        """What it has written so far."""
        return (self._folder / "stdout").read_text(errors="replace")

    @property
    def err(self) -> str:
        """What it has written to its standard error so far."""
        return (self._folder / "stderr").read_text(errors="replace")

    def send(self, signum: int) -> None:
        """Signal it."""
        self.process.send_signal(signum)

    def up(self, tasks: int, timeout: float = 40.0) -> Started:
        """Wait until so many tasks have printed a line that begins with ``up``."""
        return self.until(lambda it: it.out.count("| up") >= tasks, timeout)

    def until(self, condition: Callable[[Started], object], timeout: float = 40.0) -> Started:
        """Wait until something is true of it; fail if it is not in time."""
        deadline = time.monotonic() + timeout
        while not condition(self):
            if time.monotonic() > deadline or self.process.poll() is not None:  # once more: it may just be
                assert condition(self), f"not in time; it wrote:\n{self.out}\n{self.err}"
            time.sleep(0.02)
        return self

    def stop(self, signum: int, timeout: float = 30.0, code: int | None = None) -> Ended:
        """Signal it, and wait for its end as `wait` does."""
        self.send(signum)
        return self.wait(timeout, code)

    def wait(self, timeout: float = 30.0, code: int | None = None) -> Ended:
        """Wait for its end; fail if it does not come in time, or with another exit code than this one."""
        if self.process.returncode is None and not _ends(self.pid, timeout):
            self.kill()
            pytest.fail(f"still running after {timeout} s; it wrote:\n{self.out[-4000:]}\n{self.err[-4000:]}")
        elapsed = time.monotonic() - self._since
        out, err = ((self._folder / name).read_bytes() for name in ("stdout", "stderr"))
        return Ended(self.process.wait(), out, err, elapsed).expected(code)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self.process.kill()
        self.process.wait()


def _ends(pid: int, timeout: float) -> bool:
    """Whether a child ends in time; it is not reaped, and seen at once."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(pidfd)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore handlers and mask at the end: processes of later tests would inherit them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    mask, handlers = signal.pthread_sigmask(signal.SIG_BLOCK, ()), [*map(signal.getsignal, numbers)]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


#: The installed command, as every start of it begins.
COMMAND = (sys.executable, "-m", "launcher")


def in_shell(script: str, shell: str = "sh") -> tuple[str, ...]:
    """Return the beginning of a command that a shell script runs as ``"$@"``."""
    return (shell, "-c", script, shell, *COMMAND)


class Launch:
    """The installed command, at home in a folder of the test.

    Output goes to files: what outlives the command cannot keep a test from seeing its end.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state" / "tf-launcher" / "runs"
        self.started: list[Started] = []

    def __call__(
        self, *args: str | os.PathLike[str], timeout: float = 30.0, code: int | None = None, **settings: Any
    ) -> Ended:
        """Run it to its end, as `Started.wait` waits for it; settings as `start` has them."""
        return self.start(*args, **settings).wait(timeout, code)

    def here(
        self,
        *args: str | os.PathLike[str],
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        code: int | None = None,
    ) -> Ended:
        """Run it in this process, in a tenth of the time: for commands that start no task."""
        written = (io.BytesIO(), io.BytesIO())
        out, err = (io.TextIOWrapper(file, "utf-8", "backslashreplace") for file in written)
        words = [os.fspath(arg) for arg in args]
        since = time.monotonic()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            for name, value in {**self.environment(), **(env or {})}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["launch", *words])
            if cwd is not None:
                patch.chdir(cwd)
            with _own_signals():
                ended = _run(words)
        out.flush()
        err.flush()
        out_bytes, err_bytes = (file.getvalue() for file in written)
        return Ended(ended, out_bytes, err_bytes, time.monotonic() - since).expected(code)

    def start(
        self,
        *args: str | os.PathLike[str],
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        command: Sequence[str] = COMMAND,
    ) -> Started:
        """Start it; whatever still runs at the end of the test is killed.

        Args:
            args: its arguments.
            cwd: where; default: where pytest runs, the checkout.
            env: added to the environment of the test.
            stdin: as ``subprocess`` has it.
            command: what to put before the arguments.
        """
        folder = self.home / f"command-{len(self.started)}"
        folder.mkdir()
        environment = {**os.environ, **self.environment(), **(env or {})}
        argv = [*command, *(os.fspath(arg) for arg in args)]
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            since = time.monotonic()
            process = subprocess.Popen(
                argv, stdin=stdin, stdout=out, stderr=err, cwd=cwd, env=environment, start_new_session=True
            )
        self.started.append(Started(process, folder, since))
        return self.started[-1]

    def environment(self) -> dict[str, str]:
        """What makes ``home`` its home."""
        return {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
        }


@pytest.fixture
def launch(tmp_path: Path, nothing_left: str) -> Iterator[Launch]:
    """The installed command: ``launch("--workers", "2", "true").code``. Its home is ``tmp_path/home``."""
    home = tmp_path / "home"
    home.mkdir()
    command = Launch(home)
    yield command
    for started in command.started:
        started.kill()


@contextmanager
def at_the_end(script: str, *words: str, **environ: str) -> Iterator[None]:
    """Run a shell script at the end of the context, or when this process is killed before.

    Args:
        script: in the language of sh.
        words: its ``$0``, ``$1`` and so on.
        environ: added to its environment.
    """
    # It waits by what the shell itself has: a child of it could begin during a test, and look like its own.
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; {script}", *words], env={**os.environ, **environ},
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        process.communicate(timeout=300)  # it closes its stdin
    assert process.returncode == 0, f"{script} failed: {words}"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster, for the tests of more than one folder."""
    from tests.slurm.cluster import a_cluster

    with a_cluster(tmp_path_factory.mktemp("slurm"), f"t{os.getpid()}") as cluster:
        yield cluster


@pytest.fixture
def held(slurm: Cluster) -> dict[str, str]:
    """An allocation of all nodes that lasts longer than the test: the variables of a process in it."""
    return slurm.held()


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """A namespace of a cluster, for the tests of more than one folder."""
    from tests.kubernetes.cluster import a_cluster

    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()} {time.time()}"
    with a_cluster(tmp_path_factory.mktemp("kubernetes"), run) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Where `hdfs`, `s3` and `gcs` of the tests are; each is started when a test needs it first."""
    from tests.storage.servers import shared_servers

    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()} {time.time()}"
    with shared_servers(f"{zlib.crc32(run.encode()):08x}") as servers:
        yield servers


@pytest.fixture
def hdfs(servers: Servers) -> Iterator[Hdfs]:
    """A new folder of a real HDFS, whose servers other tests use, too."""
    from tests.storage.stores import a_folder_of_hdfs

    with servers.use("hdfs", alone=False), a_folder_of_hdfs(servers) as hdfs:
        yield hdfs


@pytest.fixture
def hdfs_alone(servers: Servers) -> Iterator[Hdfs]:
    """The same while no other test uses it: its servers may be killed, and run again after the test."""
    from tests.storage.stores import a_folder_of_hdfs

    with servers.use("hdfs", alone=True), a_folder_of_hdfs(servers) as hdfs:
        yield hdfs


@pytest.fixture
def s3(servers: Servers) -> S3:
    """A new bucket of an S3 server."""
    from tests.storage.stores import S3

    return S3(servers)


@pytest.fixture
def gcs(servers: Servers) -> Gcs:
    """A new bucket of an emulator of Google Cloud Storage."""
    from tests.storage.stores import Gcs

    return Gcs(servers)


def install(site: Path, name: str, source: str) -> dict[str, str]:
    """Install a package with a transport into a folder.

    Args:
        site: the folder; it may exist.
        name: of the package, its module and the transport.
        source: of the module.

    Returns:
        The environment in which Python finds it.
    """
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[launch.transports]\n{name} = {name}\n")
    return {"PYTHONPATH": str(site)}


def executable(path: Path, text: str) -> Path:
    """Write a program that anybody can run, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def weird_path(tmp_path: Path) -> Path:
    """A folder whose name breaks what does not quote, or quotes by hand."""
    path = tmp_path / 'it\'s a "weird" $(path);\n& *\\ {ps_hosts} é'
    path.mkdir()
    return path
