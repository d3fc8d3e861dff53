"""What the options about containers mean."""

from __future__ import annotations

import argparse
import os

import pytest

from launcher.cli.dockeroptions import (
    add_from_file,
    asked_mounts,
    conflicts,
    mounts,
    on_machines,
    role_cpus,
    role_memory,
    tmpfs_faults,
)
from launcher.cli.options import add_options
from launcher.job import Host
from launcher.jobfile import DockerKeys
from launcher.transport.docker.settings import Mount


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("512m", ("", 512 << 20)),
        ("2g", ("", 2 << 30)),
        ("1.5GiB", ("", 3 << 29)),
        ("worker=64MB", ("worker", 64 << 20)),
        ("10000000", ("", 10_000_000)),
    ],
)
def test_memory(text: str, meant: tuple[str, int]):
    assert role_memory(text) == meant


@pytest.mark.parametrize("text", ["", "much", "1m", "-2g", "2x", "worker=", "2 g g"])
def test_no_memory(text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        role_memory(text)


def test_cpus():
    assert role_cpus("1.5") == ("", 1.5)
    assert role_cpus("ps=2") == ("ps", 2.0)
    for text in ("", "0", "-1", "nan", "inf", "ps=", "many"):
        with pytest.raises(argparse.ArgumentTypeError):
            role_cpus(text)


def test_mounts():
    found, faults = mounts(["/a", "/a:/b", "/a:/b:ro", "sub:ro", "~/x:/x:rw", "/a:/b/../c"])
    here, home = os.getcwd(), os.path.expanduser("~")
    assert not faults
    assert found == [
        Mount("/a", "/a"),
        Mount("/a", "/b"),
        Mount("/a", "/b", True),
        Mount(f"{here}/sub", f"{here}/sub", True),
        Mount(f"{home}/x", "/x"),
        Mount("/a", "/c"),
    ]


@pytest.mark.parametrize("word", ["", ":/b", "/a:b", "/a:/b:/c", "/a:/", "/", "/a:/b:so"])
def test_no_mounts(word: str):
    found, faults = mounts([word])
    assert (found, len(faults)) == ([], 1)


def test_mounts_of_other_machines():
    found, faults = mounts(["~/data", "~/data:/data", "sub", "~:/home:ro"], here=False)
    assert not faults
    here = os.getcwd()
    assert found == [
        Mount("~/data", "~/data"),
        Mount("~/data", "/data"),
        Mount(f"{here}/sub", f"{here}/sub"),
        Mount("~", "/home", True),
    ]
    assert mounts(["~"], here=False)[0] == []


def arguments(*words: str) -> argparse.Namespace:
    """Parsed options of a launch."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "hosts", "machines"),
    [
        ([], [Host("localhost")], False),
        ([], [Host("a", source="job.yaml:3")], True),
        (["--hosts", "a,b"], [Host("a", source="--hosts"), Host("b", source="--hosts")], False),
        (["--hosts", "a,u@b"], [Host("a"), Host("b", user="u")], True),
        (["--hosts", "a,b:22"], [Host("a"), Host("b", port=22)], True),
        (["--hosts", "a,localhost"], [Host("a"), Host("localhost")], True),
        (["--hosts", __file__], [Host("a")], True),
    ],
)
def test_names_and_machines(words: list[str], hosts: list[Host], machines: bool):
    assert on_machines(arguments(*words), hosts) is machines


KEYS = DockerKeys(
    "img", ("../data:/data", "~/x", "/abs"), read_only=True, memory=(("", 1 << 30), ("ps", 1 << 29)),
    cpus=(("worker", 2.0),), user="1:2", pull="always", options=(("ipc", ("host",)),),
)  # fmt: skip


def test_what_a_file_says():
    args = arguments()
    add_from_file(args, KEYS, "/jobs")
    assert (args.docker, args.user, args.pull, args.read_only, args.no_mount) == (
        "img",
        "1:2",
        "always",
        True,
        False,
    )
    assert args.mount == ["/jobs/../data:/data", "~/x", "/abs"]
    assert args.memory == [("", 1 << 30), ("ps", 1 << 29)]
    assert args.docker_options == KEYS.options
    assert set(args.limited_roles) == {"", "ps", "worker"}


def test_what_the_command_line_says_wins():
    args = arguments(
        "--docker", "other", "--user", "3", "--pull", "never", "--no-mount", "--mount", "/m:/data",
        "--memory", "2g", "--cpus", "ps=1",
    )  # fmt: skip
    add_from_file(args, KEYS, "/jobs")
    assert (args.docker, args.user, args.pull, args.read_only, args.no_mount) == (
        "other",
        "3",
        "never",
        False,
        True,
    )
    assert args.mount[-1] == "/m:/data"
    assert args.memory == [("", 2 << 30)]
    assert args.cpus == [("worker", 2.0), ("ps", 1.0)]


def test_a_file_that_says_nothing_of_containers():
    args = arguments()
    add_from_file(args, DockerKeys(), "/jobs")
    assert (args.docker, args.mount, args.docker_options) == (None, [], ())


def test_an_option_replaces_a_mount_of_the_file():
    args = arguments("--mount", "/mine:/data")
    add_from_file(args, DockerKeys("img", ("/its:/data", "/x:/y", "/x:/y/")), "/jobs")
    assert asked_mounts(args) == ([Mount("/mine", "/data"), Mount("/x", "/y")], [])


@pytest.mark.parametrize(
    ("of_file", "words", "told"),
    [
        (("/x:/d", "/tmp:/d/"), (), "--mount /tmp:/d: /x and /tmp can't both be mounted there"),
        (
            (),
            ("--mount", "/x:/d", "--mount", "/y:/d"),
            "--mount /y:/d: /x and /y can't both be mounted there",
        ),
        ((), ("--mount", "/x:/d", "--mount", "/x:/d:ro"), "can't be mounted there both read-only and not"),
    ],
)
def test_two_mounts_at_one_place(of_file: tuple[str, ...], words: tuple[str, ...], told: str):
    args = arguments(*words)
    add_from_file(args, DockerKeys("img", of_file), "/jobs")
    _, faults = asked_mounts(args)
    assert len(faults) == 1
    assert told in f"{faults[0].where}: {faults[0].what}"


def test_folders_in_memory_where_something_is():
    args = arguments()
    add_from_file(args, DockerKeys("img", options=(("tmpfs", ("/d/:size=1g", "/e", "/e:size=1g")),)), "/jobs")
    found = [fault.what for fault in tmpfs_faults(args, {"/d": Mount("/x", "/d")})]
    assert found == ["/x is to be mounted there, too", "there is one at this place already"]


HERE = [Host("localhost")]
CONNECTING = ("--lease=30", "--fanout=3", "--connect-timeout=5", "--accept-new-host-keys", "--no-check")


@pytest.mark.parametrize("option", CONNECTING)
def test_options_of_other_machines_where_there_are_none(option: str):
    for words in ([option], [option, "--docker=img"]):
        (fault,) = conflicts(arguments(*words), HERE)
        assert fault.where == option.partition("=")[0]


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        (["--hosts=localhost"], HERE),  # a list of a scheduler, say
        ([], [Host("localhost", source="job.yaml:3")]),
        ([], []),  # they could not be read, which is said anyway
        (["--docker=img"], []),
        (["--docker=img"], [Host("a", source="job.yaml:3")]),
    ],
)
def test_options_of_other_machines_that_may_have_a_meaning(words: list[str], hosts: list[Host]):
    assert not list(conflicts(arguments(*CONNECTING, *words), hosts))


def test_options_of_files_are_not_about_machines_alone():
    travelling = ["--sync=.", "--collect=out"]
    assert not list(conflicts(arguments(*travelling), HERE))
    found = conflicts(arguments(*travelling, "--docker=img"), HERE)
    assert [fault.where for fault in found] == ["--sync", "--collect"]


def test_programs_can_give_a_relay_wherever_the_job_runs():
    for words in ([], ["--docker=img"]):
        assert not list(conflicts(arguments("--relay=/s", *words), HERE))
