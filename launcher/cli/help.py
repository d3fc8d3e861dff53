"""``launch help``: print how ``launch`` or one of its commands is used, as ``--help`` does."""

from __future__ import annotations

from launcher.cli.arguments import command_parser
from launcher.cli.commands import COMMANDS, no_command
from launcher.config.settings import Group, Setting, Settings

SUMMARY = "show how launch or one of its commands is used"

EXAMPLES = """\
launch help          common options, commands and examples, as launch --help
launch help logs     the options of a command, as launch logs --help"""


TOPIC: Setting[str | None] = Setting(
    "topic", str, "a command (default: launch itself)", metavar="COMMAND", default=None, positional="?",
    complete=lambda: list(COMMANDS),
)  # fmt: skip
GROUPS = (Group("positional arguments", (TOPIC,)),)


def run(settings: Settings) -> int:
    """Print the help text of the command that the user names, or of ``launch`` itself.

    Raises:
        InputError: There is no such command.
    """
    name = settings[TOPIC] or "run"
    if name not in COMMANDS:
        raise no_command(name)
    print(command_parser(name).format_help(), end="")
    return 0
