"""Stands in for ``docker``, ``kubectl`` and the commands of Slurm, where launches have left something.

A test copies it under the names of these commands. Beside the copy it finds ``objects.json``, which says what
there is, and it adds each call to ``calls.jsonl``. It creates no container, pod or job: that fails, so a
launch ends there, and the test sees how the object would have been made.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

Objects = Mapping[str, Any]


def main() -> int:
    """Record the call and answer it. Returns the exit code of the command."""
    program, words = Path(sys.argv[0]), sys.argv[1:]
    stdin = sys.stdin.read() if "--filename=-" in words or program.name == "sbatch" else ""
    variables = {name: value for name, value in os.environ.items() if name.startswith("LAUNCH_RUN")}
    call = {"command": program.name, "words": words, "stdin": stdin, "variables": variables}
    with open(program.parent / "calls.jsonl", "a", encoding="utf-8") as calls:
        calls.write(json.dumps(call) + "\n")
    objects = json.loads((program.parent / "objects.json").read_text(encoding="utf-8"))
    if program.name == "docker":
        return docker(words, objects["docker"])
    if program.name == "kubectl":
        return kubectl(words, objects["kubernetes"], stdin)
    return slurm(program.name, words, objects["slurm"])


def docker(words: Sequence[str], objects: Objects) -> int:
    """List the containers and networks with the labels, and in the format, that are asked for."""
    if list(words[:2]) in (["ps", "-a"], ["network", "ls"]):
        form = words[words.index("--format") + 1]
        filters = [after for word, after in zip(words, words[1:], strict=False) if word == "--filter"]
        for item in objects["containers" if words[0] == "ps" else "networks"]:
            if all(_has(item["labels"], text.removeprefix("label=")) for text in filters):
                print(re.sub(r'\{\{\.(?:Label "([^"]+)"|(\w+))\}\}', partial(_field, item), form))
    if words[0] == "info":
        print("{}")
    return 1 if words[0] == "run" else 0


def _field(item: Objects, found: re.Match[str]) -> str:
    label, name = found.groups()
    return str(item["labels"].get(label, "") if label else item[name.removesuffix("s")])


def kubectl(words: Sequence[str], objects: Objects, stdin: str) -> int:
    """List the Jobs and pods with the labels that are asked for, and allow everything."""
    command = next(word for word in words if not word.startswith("-"))
    if command == "get":
        kind = words[words.index("get") + 1]
        selector = next(word.partition("=")[2] for word in words if word.startswith("--selector="))
        items = [
            item
            for item in objects.get(kind, [])
            if all(_has(item["metadata"]["labels"], label) for label in selector.split(","))
        ]
        print(json.dumps({"items": items}))
    elif command == "create":
        items = json.loads(stdin)["items"]
        if any(item["kind"] != "SelfSubjectAccessReview" for item in items):
            print("error: nothing is created here", file=sys.stderr)
            return 1
        print("true\n" * len(items))
    elif command == "exec":
        print("False")  # the launcher has not ended
    elif command == "config":
        print("here")
    return 0


def _has(labels: Mapping[str, str], text: str) -> bool:
    name, equals, value = text.partition("=")
    return labels.get(name) == value if equals else name in labels


def slurm(command: str, words: Sequence[str], objects: Sequence[Mapping[str, str]]) -> int:
    """List jobs in the format that is asked for, or show one."""
    if command == "squeue":
        form = next(word.partition("=")[2] for word in words if word.startswith("--format="))
        for job in objects:
            print(re.sub("%(.)", lambda found: job[found[1]], form))  # noqa: B023 - it is called at once
    if command == "scontrol":
        (job,) = (job for job in objects if job["A"] == words[-1])
        fields = {"JobId": job["A"], "Comment": job["comment"], "BatchFlag": job["batch"], "Sid": "node1:1"}
        print(" ".join(f"{name}={value}" for name, value in fields.items()))
    if command in ("salloc", "sbatch"):
        print(f"{command}: error: nothing is submitted here", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
