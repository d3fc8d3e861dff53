"""What a program asks of a launch, as a command line."""

from __future__ import annotations

from launcher.api.run import _READERS, RunOptions, option_arguments
from launcher.common.cluster import TaskId

W0 = TaskId("worker/0")


def test_every_option_is_read():
    assert _READERS.keys() == RunOptions.__annotations__.keys()


def test_a_value_is_never_an_option():
    assert option_arguments({"venv": "--version", "timeout": 1e-7, "collect": ["-q", "a"]}) == [
        "--venv=--version", "--collect=-q", "--collect", "a", "--timeout", "0.0000001"
    ]  # fmt: skip


def test_options_on_the_command_line_have_no_value_of_the_environment():
    options: RunOptions = {"hosts": "lab.yaml", "docker": "x/y:1", "env": {"KEY": "secret"}, "timeout": None}
    options |= {"grace": 2.5, "flags": True, "options": ["--json"]}
    words = "--json -x KEY --hosts lab.yaml --flags --docker x/y:1 --grace 2.5"
    assert option_arguments(options) == words.split()
