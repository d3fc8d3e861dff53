"""The rights that launch asks the API server for. A real one answers in tests/kubernetes/test_troubles.py."""

from __future__ import annotations

import pytest

from launcher.backends.kubernetes.rights import RIGHTS, check_rights
from launcher.common.errors import TransportError


def test_all_missing_rights_are_in_one_message():
    asked = [(verb, resource) for resource, verbs in RIGHTS.items() for verb in verbs]
    refused = {("create", "jobs.batch"), ("delete", "jobs.batch"), ("create", "pods/exec")}
    answers = "\n".join("false" if right in refused else "true" for right in asked)
    message = "in the namespace team: create, delete jobs.batch; create pods/exec "
    with pytest.raises(TransportError, match=message):
        check_rights(lambda *words, stdin="": answers, "team")
    check_rights(lambda *words, stdin="": answers.replace("false", "true"), "team")


@pytest.mark.parametrize("answer", ["", "true\n", "yes\n" * sum(map(len, RIGHTS.values()))])
def test_no_answer_is_no_right(answer: str):
    with pytest.raises(TransportError, match="the API server"):
        check_rights(lambda *words, stdin="": answer, "team")
