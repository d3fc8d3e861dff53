"""The rights that launch asks the API server for, and what it makes of the answers."""

from __future__ import annotations

import json

import pytest

from launcher.backends.kubernetes.rights import RIGHTS, check_rights
from launcher.common.errors import TransportError


def _api(refused: set[tuple[str, str]]):
    """Answers like kubectl: a line for each object."""

    def ask(*words: str, stdin: str = "") -> str:
        assert words[0] == "create"
        answers = []
        for review in json.loads(stdin)["items"]:
            asked = review["spec"]["resourceAttributes"]
            assert asked["namespace"] == "team"
            right = asked["verb"], "/".join(filter(None, (asked["resource"], asked["subresource"])))
            answers.append("true" if right not in refused else "false")
        assert len(answers) == sum(map(len, RIGHTS.values()))
        return "\n".join(answers) + "\n"

    return ask


def test_all_missing_rights_are_in_one_message():
    check_rights(_api(set()), "team")
    with pytest.raises(TransportError) as raised:
        check_rights(_api({("create", "jobs"), ("delete", "jobs"), ("create", "pods/exec")}), "team")
    missing = "create, delete jobs.batch; create pods/exec (docs/kubernetes.md, Rights, has the Role)"
    assert f"in the namespace team: {missing}" in str(raised.value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'kubectl: namespaces "team" is forbidden: User "x" cannot get it',
            "; or there is no namespace 'team': --namespace names another one",
        ),
        ('kubectl: namespaces "team" not found', "there is no namespace 'team' in the cluster"),
        ("", "has the Role)"),
    ],
)
def test_a_user_without_any_right_may_have_named_a_namespace_that_is_not_there(said: str, told: str):
    all_rights = {(verb, name.partition(".")[0]) for name, verbs in RIGHTS.items() for verb in verbs}

    def ask(*words: str, stdin: str = "") -> str:
        if words[0] == "create":
            return _api(all_rights)(*words, stdin=stdin)
        assert words[:3] == ("get", "namespace", "team")
        if said:
            raise TransportError(said)
        return "namespace/team\n"

    with pytest.raises(TransportError) as raised:
        check_rights(ask, "team")
    assert str(raised.value).endswith(told)


@pytest.mark.parametrize("answer", ["", "true\n", "yes\n" * sum(map(len, RIGHTS.values()))])
def test_no_answer_is_no_right(answer: str):
    with pytest.raises(TransportError, match="the API server"):
        check_rights(lambda *words, stdin="": answer, "team")
