"""Which nodes a cluster has."""

from __future__ import annotations

import pytest

from launcher.api.roles import count_roles
from launcher.errors import InputError


def test_all_kinds_are_among_the_executors():
    roles = count_roles(7, 2, "chief", True)
    assert {name: role["count"] for name, role in roles.described.items()} == {
        "ps": 2, "chief": 1, "worker": 3, "evaluator": 1
    }  # fmt: skip
    assert roles.tasks == ["ps/0", "ps/1", "chief/0", "evaluator/0", "worker/0", "worker/1", "worker/2"]
    assert roles.fed == ["chief/0", "worker/0", "worker/1", "worker/2"]


def test_a_chief_alone():
    assert count_roles(1, 0, "chief", False).tasks == ["chief/0"]


def test_what_is_wrong_is_told_at_once():
    with pytest.raises(InputError) as caught:
        count_roles(1, 3, "boss", True)
    assert len(caught.value.faults) == 2


def test_tensorboard_is_none_of_the_nodes():
    roles = count_roles(1, 0, None, False).with_board("logs", True)
    assert roles.alien == ("tensorboard",)
    assert roles.tasks == roles.fed == ["worker/0"]
    assert roles.described["tensorboard"]["sidecar"] is True
    assert "--bind_all" not in roles.described["tensorboard"]["command"]
