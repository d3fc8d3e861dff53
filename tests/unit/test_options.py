"""What a program asks of a launch, as a command line."""

from __future__ import annotations

from launcher.api.run import Options, option_arguments
from launcher.task_id import TaskId

W0 = TaskId("worker/0")


def test_options_on_the_command_line_have_no_value_of_the_environment():
    options: Options = {"hosts": "lab.yaml", "docker": "x/y:1", "env": {"KEY": "secret"}, "timeout": None}
    options |= {"grace": 2.5, "flags": True, "options": ["--json"]}
    words = "--json --flags -x KEY --hosts lab.yaml --docker x/y:1 --grace 2.5"
    assert option_arguments(options) == words.split()
