"""The folder after ``--tensorboard`` is told from the program."""

from __future__ import annotations

import argparse
import shlex

import pytest

from launcher.cli import run
from launcher.cli.logdir import with_logdir


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("--tensorboard train.py --epochs 3", "--tensorboard= train.py --epochs 3"),
        ("--tensorboard logs train.py", "--tensorboard=logs train.py"),
        ("--tensorboard a/b.d train.py", "--tensorboard=a/b.d train.py"),
        ("--tensorboard job.yaml", "--tensorboard= job.yaml"),
        ("--tensorboard JOB.json", "--tensorboard= JOB.json"),
        ("--tensorboard job.yml", "--tensorboard= job.yml"),
        ("--tensorboard sh -c true", "--tensorboard= sh -c true"),
        ("--tensorboard /bin/sh -c true", "--tensorboard= /bin/sh -c true"),
        ("--tensorboard=sh sh -c true", "--tensorboard=sh sh -c true"),
        ("--tensorboard= logs", "--tensorboard= logs"),
        ("--tensorboard --ps 1 a.py", "--tensorboard= --ps 1 a.py"),
        ("--tensorboard -m a --tensorboard b", "--tensorboard= -m a --tensorboard b"),
        ("--tensorboard -- logs", "--tensorboard= -- logs"),
        ("--tensorboard", "--tensorboard="),
        ("--ps 1 -qx A=B --tensorboard logs a.py", "--ps 1 -qx A=B --tensorboard=logs a.py"),
        ("-qxA=B -q --run-dir=r --tensorboard logs a.py", "-qxA=B -q --run-dir=r --tensorboard=logs a.py"),
        ("-x --tensorboard logs", "-x --tensorboard logs"),
        # arguments of the program
        ("a.py --tensorboard logs", "a.py --tensorboard logs"),
        ("-- a --tensorboard logs", "-- a --tensorboard logs"),
        ("-qm a --tensorboard logs", "-qm a --tensorboard logs"),
        ("-c a --tensorboard logs", "-c a --tensorboard logs"),
        ("--ps 1 a --tensorboard logs", "--ps 1 a --tensorboard logs"),
        ("--unknown a --tensorboard logs", "--unknown a --tensorboard logs"),
        ("", ""),
    ],
)
def test_the_word_after_the_option(written: str, meant: str):
    options: dict[str, argparse.Action] = {}
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    for action in parser._actions:
        options.update(dict.fromkeys(action.option_strings, action))
    assert with_logdir(shlex.split(written), options) == shlex.split(meant)
