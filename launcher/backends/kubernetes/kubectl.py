"""The ``kubectl`` command, which is the only way to the cluster.

So contexts, logins and proxies work as for the user. Every command has a time limit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.backends.programs import SubprocessPipe
from launcher.common.errors import TransportError
from launcher.common.record import Record
from launcher.common.text import why_not_started
from launcher.threads import start

#: The time for an answer from the API server.
_ANSWER_TIMEOUT_SECONDS = 15.0
#: The time for a whole kubectl command, which may log in first.
COMMAND_TIMEOUT_SECONDS = 30.0
#: How much garbage kubectl may keep, in percent of its live memory (Go's GOGC). With this value a short
#: command needs a fifth less CPU time.
_GARBAGE_PERCENT = "400"
#: What kubectl prints if it knows no cluster.
_NO_CLUSTER = re.compile("localhost:8080|current-context must exist")
#: Beginnings of errors that explain nothing.
_ERROR_PREFIX = re.compile(
    r'^(?:error: |Error from server(?: \(\w+\))?: |error (?:when creating|validating) "STDIN": '
    r"|error validating data: )+"
)
#: Advice about an option of kubectl that the user of launch does not type.
_OPTION_ADVICE = re.compile(r"; if you choose to ignore these errors, .*")
#: A line that explains nothing.
_NOISE_LINE = re.compile(r"^[EIW]\d{4} |^Warning: |^\s*$")
#: The first of the lines about an object that the API server refuses.
_REFUSAL_LINE = re.compile(r'Error from server|The \S+ "[^"]*" is invalid')
#: The number of such lines that are shown.
_MAX_REFUSAL_LINES = 3


class Kubectl(Record):
    """Runs ``kubectl`` in one context and namespace."""

    #: The context. None means the current one.
    context: str | None = None
    #: The namespace. None means that of the context.
    namespace: str | None = None

    def argv(self, *words: str) -> list[str]:
        """Return the command line of kubectl with these words."""
        given = {"context": self.context, "namespace": self.namespace}
        return ["kubectl", *(f"--{name}={value}" for name, value in given.items() if value), *words]

    def ask(self, *words: str, stdin: str = "", limit: float = COMMAND_TIMEOUT_SECONDS) -> str:
        """Run a kubectl command, and return what it prints.

        Args:
            words: The words of the command.
            stdin: The input of the command.
            limit: The time limit in seconds.

        Raises:
            TransportError: The command fails, or does not answer in time.
        """
        try:
            done = subprocess.run(
                self._limited(min(_ANSWER_TIMEOUT_SECONDS, limit), *words),
                input=stdin.encode(),
                capture_output=True,
                timeout=limit,
                env={**os.environ, "GOGC": _GARBAGE_PERCENT},
                start_new_session=True,  # Ctrl-C in the terminal must only reach launch.
            )
        except FileNotFoundError:
            if not is_in_pod():
                raise TransportError("kubectl is not installed here: there is none along PATH") from None
            # The kernel does not say which of the two it is.
            why = "there is none along PATH, or it is not a static program"
            raise TransportError(f"kubectl{_where()} cannot be run: {why}") from None
        except OSError as error:
            raise TransportError(f"kubectl{_where()} cannot be run: {why_not_started(error)}") from None
        except subprocess.TimeoutExpired:
            raise TransportError(f"kubectl {words[0]} takes more than {limit:.0f}s") from None
        if done.returncode:
            raise TransportError(explain(done.stderr.decode("utf-8", "replace"), done.returncode))
        return done.stdout.decode("utf-8", "replace")

    def _limited(self, seconds: float, *words: str) -> list[str]:
        """Return a command line with a time limit for the answer, unless this process is in a pod."""
        return self.argv(*([] if is_in_pod() else [f"--request-timeout={seconds:g}s"]), *words)

    def await_names(self, count: int, seconds: float, kind: str, *options: str) -> None:
        """Wait until there are ``count`` objects of a kind, the time is over, or kubectl fails.

        Args:
            count: The number of objects.
            seconds: The time limit.
            kind: The kind of the objects, as in `items`.
            options: The options that select the objects, as in `items`.

        Raises:
            TransportError: This machine starts no more threads.
        """
        argv = self._limited(seconds, "get", kind, *options, "--watch", "--output=name")
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        with (
            suppress(OSError),
            subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=null, start_new_session=True) as process,
        ):
            timer = threading.Timer(seconds, process.kill)
            names = set()
            try:
                start(timer)
                for name in process.stdout or ():
                    names.add(name)
                    if len(names) >= count:
                        break
            finally:
                timer.cancel()
                process.kill()

    def items(
        self, kind: str, *options: str, limit: float = COMMAND_TIMEOUT_SECONDS
    ) -> Sequence[Mapping[str, Any]]:
        """Return the objects of a kind.

        Args:
            kind: The kind of the objects, as in ``pods``.
            options: The options that select objects, as in ``--selector=NAME=VALUE``.
            limit: The time limit in seconds.

        Raises:
            TransportError: The API server does not answer, or refuses, or kubectl prints something else.
        """
        told = self.ask("get", kind, *options, "--output=json", limit=limit)
        try:
            found: Sequence[Mapping[str, Any]] = json.loads(told)["items"]
            named = all(isinstance(item["metadata"]["name"], str) for item in found)
        except (ValueError, KeyError, TypeError):
            named = False
        if not named:
            raise TransportError(f"kubectl get {kind} prints no list of objects: {told[:80]!r}")
        return found

    def delete(self, *what: str) -> None:
        """Ask the cluster to delete objects and what they own, if they exist. This does not wait for the end.

        Raises:
            TransportError: The API server does not answer, or refuses.
        """
        self.ask("delete", *what, "--ignore-not-found", "--cascade=background", "--wait=false")

    def clean_job(self, job: Mapping[str, Any], dry_run: bool) -> str:
        """Delete a Job, unless this is a dry run, and return a line about it for the user.

        Raises:
            TransportError: The API server does not answer, or refuses.
        """
        if not dry_run:
            self.delete("job", job["metadata"]["name"])
        return f"{'would remove' if dry_run else 'removed'} {described(job)}"

    def used_namespace(self) -> str:
        """Return the namespace, which may be that of the context.

        Raises:
            TransportError: kubectl's configuration cannot be read.
        """
        words = ("config", "view", "--minify", "--output=jsonpath={..namespace}")
        return self.namespace or self.ask(*words).strip() or "default"


def described(job: Mapping[str, Any]) -> str:
    """Return the words by which a Job is named to the user."""
    return f"Job {job['metadata']['name']} of the namespace {job['metadata']['namespace']}"


def is_in_pod() -> bool:
    """Return whether kubectl uses the service account of the pod around this process.

    It does so only without ``--request-timeout``.
    """
    given = os.environ.get("KUBECONFIG") or os.path.exists(os.path.expanduser("~/.kube/config"))
    return "KUBERNETES_SERVICE_HOST" in os.environ and not given


class KubectlPipe(SubprocessPipe):
    """The pipe to a kubectl that runs a program in a pod."""

    def stderr(self) -> str:
        """Return why kubectl has failed, on one line, instead of all that it printed."""
        return explain(super().stderr())


def explain(stderr: str, status: int | None = None) -> str:
    """Return why a kubectl has failed, on one line.

    Args:
        stderr: What kubectl wrote to stderr.
        status: The exit status of kubectl, if it is known. Then the result is never empty.
    """
    lines = [line.strip() for line in stderr.splitlines() if not _NOISE_LINE.search(line)]
    if any(map(_NO_CLUSTER.search, lines)):
        return "kubectl knows no cluster: expected a context in ~/.kube/config, or a file in $KUBECONFIG"
    first = next((number for number, line in enumerate(lines) if _REFUSAL_LINE.match(line)), -1)
    told = [
        *dict.fromkeys(
            _OPTION_ADVICE.sub("", _ERROR_PREFIX.sub("", line)).rstrip(":") for line in lines[first:]
        )
    ]
    more = f"; and {len(told) - _MAX_REFUSAL_LINES} more errors" if len(told) > _MAX_REFUSAL_LINES else ""
    said = "; ".join(told[:_MAX_REFUSAL_LINES]) + more
    if not said and status is not None:
        said = f"it exited with {status}"
    return f"kubectl{_where()}: {said}" if said else ""


def _where() -> str:
    """Return where kubectl runs, for messages, if it is not the user's machine."""
    return " in the launcher's pod" if is_in_pod() else ""
