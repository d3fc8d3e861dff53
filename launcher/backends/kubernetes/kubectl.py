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
        """Return the command line of kubectl with these words, for this context and namespace."""
        options = {"context": self.context, "namespace": self.namespace}
        return ["kubectl", *(f"--{name}={value}" for name, value in options.items() if value), *words]

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
            # The API server gets less time than the whole command, which may log in first. GOGC is a setting
            # of Go, by which kubectl needs less CPU time.
            done = subprocess.run(
                self._argv_with_limit(min(_ANSWER_TIMEOUT_SECONDS, limit), *words),
                input=stdin.encode(),
                capture_output=True,
                timeout=limit,
                env={**os.environ, "GOGC": _GARBAGE_PERCENT},
                start_new_session=True,  # Ctrl-C in the terminal must only reach launch.
            )
        except FileNotFoundError:
            if not uses_pod_account():
                raise TransportError("kubectl is not installed here: there is none along PATH") from None
            # launch may have sent the pod a kubectl that needs a dynamic linker, which the image lacks. The
            # kernel reports that by the same error as a missing file.
            why = "there is none along PATH, or it is not a static program"
            raise TransportError(f"kubectl{_place()} cannot be run: {why}") from None
        except OSError as error:
            raise TransportError(f"kubectl{_place()} cannot be run: {why_not_started(error)}") from None
        except subprocess.TimeoutExpired:
            raise TransportError(f"kubectl {words[0]} takes more than {limit:.0f}s") from None
        if done.returncode:
            raise TransportError(explain(done.stderr.decode("utf-8", "replace"), done.returncode))
        return done.stdout.decode("utf-8", "replace")

    def _argv_with_limit(self, seconds: float, *words: str) -> list[str]:
        """Return the command line of kubectl with a time limit for the API server's answer.

        There is no limit if this process runs in a pod whose service account kubectl is to use, because
        kubectl does not use the account when it gets the option ``--request-timeout``.
        """
        return self.argv(*([] if uses_pod_account() else [f"--request-timeout={seconds:g}s"]), *words)

    def await_names(self, count: int, seconds: float, kind: str, *options: str) -> None:
        """Wait until there are ``count`` objects of a kind, the time is over, or kubectl fails.

        ``kubectl get --watch`` prints a name whenever such an object appears or changes.

        Args:
            count: The number of objects.
            seconds: The time limit.
            kind: The kind of the objects, as in ``pods``.
            options: The options that select objects, as in ``--selector=NAME=VALUE``.

        Raises:
            TransportError: This machine starts no more threads.
        """
        argv = self._argv_with_limit(seconds, "get", kind, *options, "--watch", "--output=name")
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        with (
            suppress(OSError),
            subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=null, start_new_session=True) as process,
        ):
            # Reading below blocks until kubectl prints a name or exits, so a timer ends it.
            timer = threading.Timer(seconds, process.kill)
            names = set()  # A name that was printed before changes nothing.
            try:
                start(timer)
                for name in process.stdout or ():  # kubectl prints a line for each.
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
        printed = self.ask("get", kind, *options, "--output=json", limit=limit)
        with suppress(ValueError, KeyError, TypeError):
            objects: Sequence[Mapping[str, Any]] = json.loads(printed)["items"]
            if all(isinstance(item["metadata"]["name"], str) for item in objects):
                return objects
        raise TransportError(f"kubectl get {kind} prints no list of objects: {printed[:80]!r}")

    def delete(self, kind: str, selection: str) -> None:
        """Ask the cluster to delete objects and what they own, if they exist. This does not wait for the end.

        Args:
            kind: The kind of the objects, as in ``jobs``.
            selection: The name of an object, or an option that selects objects.

        Raises:
            TransportError: The API server does not answer, or refuses.
        """
        self.ask("delete", kind, selection, "--ignore-not-found", "--cascade=background", "--wait=false")

    def clean_job(self, job: Mapping[str, Any], dry_run: bool) -> str:
        """Delete a Job, unless this is a dry run, and return a line about it for the user.

        Raises:
            TransportError: The API server does not answer, or refuses.
        """
        if not dry_run:
            self.delete("job", job["metadata"]["name"])
        return f"{'would remove' if dry_run else 'removed'} {described(job)}"

    def used_namespace(self) -> str:
        """Return the namespace that kubectl uses: the given one, or else that of the context, or ``default``.

        Raises:
            TransportError: kubectl's configuration cannot be read.
        """
        words = ("config", "view", "--minify", "--output=jsonpath={..namespace}")
        return self.namespace or self.ask(*words).strip() or "default"


def described(job: Mapping[str, Any]) -> str:
    """Return the words by which a Job is named to the user."""
    return f"Job {job['metadata']['name']} of the namespace {job['metadata']['namespace']}"


def uses_pod_account() -> bool:
    """Return whether kubectl uses the service account of the pod around this process.

    kubectl does so only without ``--request-timeout``, so callers leave out this option then.
    """
    has_config = os.environ.get("KUBECONFIG") or os.path.exists(os.path.expanduser("~/.kube/config"))
    return "KUBERNETES_SERVICE_HOST" in os.environ and not has_config


class KubectlPipe(SubprocessPipe):
    """The pipe to a kubectl that runs a program in a pod."""

    def stderr(self) -> str:
        """Return why kubectl has failed, on one line, instead of all that it printed."""
        return explain(super().stderr())


def explain(stderr: str, status: int | None = None) -> str:
    """Return why a kubectl has failed, on one line.

    Args:
        stderr: What kubectl wrote to stderr.
        status: The exit status of kubectl. None if it is not known.

    Returns:
        The reason. Empty if kubectl wrote nothing that explains anything and the status is not known.
    """
    lines = [line.strip() for line in stderr.splitlines() if not _NOISE_LINE.search(line)]
    if any(map(_NO_CLUSTER.search, lines)):
        return "kubectl knows no cluster: expected a context in ~/.kube/config, or a file in $KUBECONFIG"
    # If the API server refuses objects, all its lines count. Otherwise only the last line explains.
    refusals = [number for number, line in enumerate(lines) if _REFUSAL_LINE.match(line)]
    first = refusals[0] if refusals else -1
    errors = [_OPTION_ADVICE.sub("", _ERROR_PREFIX.sub("", line)).rstrip(":") for line in lines[first:]]
    errors = [*dict.fromkeys(errors)]
    reason = "; ".join(errors[:_MAX_REFUSAL_LINES])
    if len(errors) > _MAX_REFUSAL_LINES:
        reason += f"; and {len(errors) - _MAX_REFUSAL_LINES} more errors"
    if not reason and status is not None:
        reason = f"it exited with {status}"
    return f"kubectl{_place()}: {reason}" if reason else ""


def _place() -> str:
    """Return where kubectl runs, for messages. Empty if it runs on the user's machine."""
    return " in the launcher's pod" if uses_pod_account() else ""
