"""Finds the one document of a YAML file that launch reads: a job file, a TFJob or a hostfile.

All files of the user that may be Kubernetes' are read here: they have several documents, or lists of objects
(``kubectl get -o yaml``), of many kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from launcher.common.record import Record
from launcher.common.text import join_names
from launcher.config.schema import ConfigNode, FaultList, parse_yaml, quoted

#: The kind of object that is a job.
TFJOB = "TFJob"
#: Kinds of objects that contain a TFJob, and where.
_KINDS_WITH_TFJOB = {"Experiment": "spec.trialTemplate.trialSpec, its placeholders filled in"}
#: Placeholders that Katib and Helm fill in.
_KATIB_PLACEHOLDER = r"\$\{trialParameters\.[^}\n]*\}"
_HELM_PLACEHOLDER = r"\{\{-?[ \t]*(?:\.(?:Values|Release|Chart|Capabilities)|include|toYaml)\b[^}\n]*\}\}"
#: Any placeholder of a template. YAML may contain it, so it is looked for only in a file that is not YAML.
_TEMPLATE_PLACEHOLDER = r"\{\{-[^}\n]*\}\}"


class Target(Record):
    """What the command line says about a TFJob."""

    #: The program of containers that have no command, and its arguments.
    program: tuple[str, ...] = ()
    #: What runs the tasks in containers, which have limits: ``docker``, ``kubernetes``; empty: nothing does.
    engine: str = ""
    #: The containers are of the images that the TFJob names.
    images: bool = False
    #: Names of variables that tasks get from the command line.
    variables: frozenset[str] = frozenset()


#: A command line that says nothing.
NO_TARGET = Target()


class _Document(Record):
    """A document, or an object in a list of Kubernetes."""

    node: ConfigNode
    #: The kind of an object of Kubernetes; empty for any other document.
    kind: str

    @property
    def line(self) -> int:
        return self.node.line


def job_document(text: str, faults: FaultList) -> tuple[ConfigNode | None, Sequence[str]]:
    """Find the document of a job file: the only TFJob, or the only document.

    Args:
        text: The content of the file.
        faults: Gets the faults of the file.

    Returns:
        The document and notes for the user. The document is None if there are faults.
    """
    documents = _documents(text, faults)
    if documents is None:
        return None, ()
    jobs = [each for each in documents if each.kind == TFJOB]
    if not jobs:
        expected = f"expected kind: {TFJOB}, or a job file with command: and roles:"
        return _only(documents, expected, faults), ()
    if len(jobs) > 1:
        problem = f"the file has {len(jobs)} TFJobs, the first at line {jobs[0].line}"
        faults.add(jobs[1].line, problem, "expected one: launch starts one job")
        return None, ()
    others = [f"{each.kind or 'a document'} (:{each.line})" for each in documents if each is not jobs[0]]
    where = faults.where(jobs[0].line)
    note = f"{where}: launch uses this TFJob only; of the same file it does not use {join_names(others)}"
    return jobs[0].node, (note,) if others else ()


def host_document(text: str, faults: FaultList) -> ConfigNode | None:
    """Find the document of a hostfile.

    Returns:
        None if it has faults, which were added.
    """
    documents = _documents(text, faults)
    if documents is None:
        return None
    return _only(documents, "expected hosts: and a list of hosts", faults)


def is_tfjob(node: ConfigNode) -> bool:
    """Return whether a document is a TFJob."""
    return _kind(node) == TFJOB


def _only(documents: Sequence[_Document], expected: str, faults: FaultList) -> ConfigNode | None:
    """Return the only document, which must not be an object of Kubernetes.

    Returns:
        None if there is another document, or such an object: then a fault was added.
    """
    objects = [each for each in documents if each.kind]
    if objects:
        kind = objects[0].kind
        inside = f"; {kind} has a {TFJOB} at {_KINDS_WITH_TFJOB[kind]}" if kind in _KINDS_WITH_TFJOB else ""
        kinds = join_names([*dict.fromkeys(each.kind for each in objects)])
        faults.add(objects[0].line, f"this is a file of Kubernetes ({kinds})", f"{expected}{inside}")
        return None
    if len(documents) > 1:
        problem = f"a second document, after that at line {documents[0].line}"
        faults.add(documents[1].line, problem, "expected one document")
        return None
    return documents[0].node if documents else ConfigNode(None, 1, 1)


def _documents(text: str, faults: FaultList) -> list[_Document] | None:
    """Return the documents of a file that are not empty, and in place of a list of Kubernetes its objects.

    Returns:
        None if the file has faults, which were added.
    """
    attempt = FaultList(faults.source)
    documents = [each for node in parse_yaml(text, attempt) for each in _objects(node)]
    is_yaml = not len(attempt)
    if not is_yaml or any(each.kind == TFJOB for each in documents):
        patterns = (
            (_KATIB_PLACEHOLDER, _HELM_PLACEHOLDER)
            if is_yaml
            else (_KATIB_PLACEHOLDER, _HELM_PLACEHOLDER, _TEMPLATE_PLACEHOLDER)
        )
        unfilled = re.search(rf"(?m)^(?![ \t]*#).*?({'|'.join(patterns)})", text)
        if unfilled:
            line = text.count("\n", 0, unfilled.start(1)) + 1
            faults.add(
                line, f"the placeholder {quoted(unfilled[1])} is not filled in", _filled_by(unfilled[1])
            )
            return None
    if not is_yaml:
        parse_yaml(text, faults)
        return None
    return documents


def _filled_by(placeholder: str) -> str:
    """Return what the user can give in place of a file with this placeholder."""
    if placeholder.startswith("$"):
        return "expected a value, as Katib writes it into the TFJob of each trial"
    return "expected the output of `helm template CHART`"


def _objects(node: ConfigNode) -> Iterator[_Document]:
    """Yield a document, or the objects of a list of Kubernetes."""
    kind = _kind(node)
    items = node.value.get("items", node).value if kind.endswith("List") else None
    if not isinstance(items, list):
        yield _Document(node, kind)
    elif not items:
        yield _Document(node, f"an empty {kind}")
    for item in items if isinstance(items, list) else ():
        yield from _objects(item)


def _kind(node: ConfigNode) -> str:
    """Return the kind of an object of Kubernetes; empty for any other document."""
    if not isinstance(node.value, dict):
        return ""
    kind = node.value.get("kind", node).value
    if "apiVersion" in node.value or kind == TFJOB or {"kind", "spec"} <= node.value.keys():
        return kind if isinstance(kind, str) and kind else "without a kind"
    return ""
