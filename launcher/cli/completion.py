"""``launch completion``: what makes a shell complete the words of ``launch``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SUMMARY = "print the completion script of a shell"

EXAMPLES = """\
launch completion bash > ~/.local/share/bash-completion/completions/launch
launch completion zsh > ~/.zfunc/_launch      with fpath+=(~/.zfunc) before compinit in ~/.zshrc
eval "$(launch completion bash)"              for this shell only"""

#: What shtab's FILE is, without importing it for every command.
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}

#: Words of a help that mean files and folders.
_PATHS = ("DIR", "FILE", "PATH", "PROGRAM", "SOCKET", "SRC", "X")


def completes_files(action: argparse.Action) -> None:
    """Let a shell complete the value of this argument with names of files."""
    action.complete = _FILES  # type: ignore[attr-defined]  # where shtab looks for it


#: What completes an argument of which the help says that this is its value.
_RUNS = {"RUN": "_launch_unfinished", "RUN | TASK": "_launch_runs_and_tasks"}

#: Names of folders and of files: a shell knows where runs are without asking Python.
_PREAMBLE = {
    "bash": r"""
_launch_runs="${XDG_STATE_HOME:-$HOME/.local/state}/tf-launcher/runs"

_launch_unfinished() {
  local run
  for run in "$_launch_runs"/*; do
    [[ -d $run && ! -e $run/report.json ]] && compgen -W "${run##*/}" -- "$1"
  done
}

_launch_runs_and_tasks() {
  local names run log newest
  for run in "$_launch_runs"/*; do
    [[ -d $run ]] && newest=$run && names+=" ${run##*/}"
  done
  for log in "$newest"/logs/*-*.log; do
    log="${log##*/}" && log="${log%.log}"
    [[ -n $newest && $log != "*"* ]] && names+=" ${log%-*}/${log##*-}"
  done
  compgen -W "$names" -- "$1"
}
""",
    "zsh": r"""
functions[_launch_commands]=$functions[_shtab_launch_commands]
_shtab_launch_commands() { _launch_commands; _files }

_launch_unfinished() {
  local -a names
  names=(${XDG_STATE_HOME:-$HOME/.local/state}/tf-launcher/runs/*(N-/e['[[ ! -e $REPLY/report.json ]]']:t))
  compadd -a names
}

_launch_runs_and_tasks() {
  local -a runs logs
  runs=(${XDG_STATE_HOME:-$HOME/.local/state}/tf-launcher/runs/*(N-/))
  compadd -- ${runs:t}
  (( $#runs )) || return
  logs=($runs[-1]/logs/*-*.log(N:t:r))
  compadd -- ${logs/(#b)(*)-(<->)/$match[1]\/$match[2]}
}
""",
}

#: A program or a job file may stand where the name of a command may (zsh: see above). What nobody knows how
#: to complete is, as after any command, the name of a file.
_BASH_END = """
_shtab_launch_pos_0_COMPGEN=_shtab_compgen_files
complete -o bashdefault -o default -F _shtab_launch launch"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch completion``."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the script; it is static, so that a shell does not start Python at every Tab."""
    import shtab

    from launcher.cli.main import build_parser

    parser = build_parser()
    for action in _actions(parser):
        _completed_by_metavar(action)
    print(shtab.complete(parser, args.shell, preamble=_PREAMBLE[args.shell]))
    if args.shell == "bash":
        print(_BASH_END)
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of every command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action


def _completed_by_metavar(action: argparse.Action) -> None:
    """What the help calls a value says how it is completed."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar in _RUNS:
        action.complete = dict.fromkeys(_PREAMBLE, _RUNS[metavar])  # type: ignore[attr-defined]
    elif metavar.partition("[")[0].strip() in _PATHS:
        completes_files(action)
