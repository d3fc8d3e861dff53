"""Which entries travel: what git ignores stays behind, whatever the names and patterns are."""

# A line of a table is one case.
# ruff: noqa: E501

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.files.requests import parse_syncs
from launcher.files.walk import SourceTree, left_out, read_trees
from tests.conftest import examples

_GIT = shutil.which("git")


def looked(*roots: Path | str) -> list[SourceTree]:
    return read_trees(parse_syncs(map(str, roots)), "/")[0]


def files(root: Path | str) -> set[str]:
    """What travels, but folders."""
    return {path for path, entry in looked(root)[0].entries.items() if entry.kind != "d"}


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


#: Files; rules by their files; the folder that is copied; and what travels of it.
RULES_OF = {
    "launchignore wins": ("data/huge data/small out/x x.log y.log", {".gitignore": "out/\nx.log\n", ".launchignore": "data/huge\n!out/\n!x.log\n"}, ".", ".gitignore .launchignore data/small out/x x.log y.log"),
    "git's own": (".git/config sub/.git/config sub/x m/.git", {".launchignore": "!.git\n"}, ".", ".launchignore sub/x"),
    # rules of the repository around count, those outside do not
    "repository around": ("repo/.git/HEAD repo/a/b/x.pyc repo/a/b/y.py repo/a/b/only repo/a/b/c/only", {".gitignore": "*.py\n", "repo/.gitignore": "*.pyc\n/a/b/only\n"}, "repo/a/b", "y.py c/only"),
    # a folder that is ignored itself travels when it is asked for
    "ignored itself": ("repo/.git/HEAD repo/build/x.pyc repo/build/y", {"repo/.gitignore": "build\n*.pyc\n"}, "repo/build", "x.pyc y"),
    "no repository": ("top/a/x", {"top/.gitignore": "*\n"}, "top/a", "x"),
}  # fmt: skip


@pytest.mark.parametrize(("paths", "rules", "top", "travels"), RULES_OF.values(), ids=RULES_OF)
def test_rules(tmp_path: Path, paths: str, rules: dict[str, str], top: str, travels: str):
    make(tmp_path, *paths.split())
    for name, text in rules.items():
        (tmp_path / name).write_text(text)
    assert files(tmp_path / top) == set(travels.split())


def test_names_that_are_not_text(tmp_path: Path):
    root = os.fsencode(tmp_path)
    for name in (b"\xff.log", b"\xff.txt", b"new\nline.log", b"line\n"):
        with open(root + b"/" + name, "wb"):
            pass
    (tmp_path / ".gitignore").write_bytes(b"*.log\n\xff.*\n")
    assert files(tmp_path) == {".gitignore", "line\n"}


def ignored_by_git(root: str, paths: list[bytes]) -> set[bytes]:
    """Those that git would not add. Each is asked about by itself."""
    assert _GIT
    environment = {"PATH": os.environ["PATH"], "HOME": root, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        [_GIT, "-c", "core.excludesFile=/dev/null", "check-ignore", "-z", "--stdin", "--no-index"],
        cwd=root, input=b"\0".join(paths), capture_output=True, timeout=50, env=environment,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return set(filter(None, done.stdout.split(b"\0")))


NAMES = st.sampled_from(
    [
        b"a", b"b", b"ab", b"foo", b"foobar", b"x.log", b".hid", b"a b", b"a-b", b"!x", b"#x", b"z1", b"keep",
    ]
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
#: As people write them.
USUAL = st.sampled_from(
    [
        b"*.log", b"x.*", b".*", b"a*", b"f*", b"*o*", b"[ab]", b"[!a]", b"?", b"a?", b"**/foo", b"foo/**",
        b"a/**/b", b"a/*", b"/a/b", b"a/b/", b"*/b", b"/*/foo", b"foo/bar",
        b"# a comment", b"\\#x", b"\\!x", b"",
    ]
)  # fmt: skip
PLAIN = st.one_of(USUAL, NAMES, NAMES.map(lambda name: name + b"/"), NAMES.map(lambda name: b"/" + name))
PATTERNS = st.one_of(PLAIN, PLAIN.map(lambda pattern: b"!" + pattern))
RULES = st.lists(PATTERNS, max_size=6).map(b"\n".join)


def plant(root: bytes, paths: list[bytes]) -> None:
    for path in paths:
        whole = root + b"/" + path
        try:
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "xb"):
                pass
        except OSError:  # a file is where a folder should be, or the other way round
            continue


@pytest.mark.promise("ignore rules as `git check-ignore`")
@pytest.mark.skipif(_GIT is None, reason="no git on this machine")
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    paths=st.lists(PATHS, min_size=1, max_size=15),
    top=RULES,
    nested=st.lists(st.tuples(PATHS, RULES), max_size=2),
)
def test_whatever_git_ignores_stays_behind_and_nothing_else(
    paths: list[bytes], top: bytes, nested: list[tuple[bytes, bytes]]
):
    with tempfile.TemporaryDirectory() as folder:
        root = os.fsencode(folder)
        plant(root, paths)
        rules = {b"": top, **{path: text for path, text in nested if os.path.isdir(root + b"/" + path)}}
        for path, text in rules.items():
            with open(os.path.join(root, path, b".gitignore"), "wb") as file:
                file.write(text)
        everything = [
            os.path.join(parent, name)[len(root) + 1 :]
            for parent, _, names in os.walk(root)
            for name in names
        ]
        subprocess.run([str(_GIT), "init", "-q", "."], cwd=folder, timeout=50, check=True)
        expected = {os.fsdecode(path) for path in set(everything) - ignored_by_git(folder, everything)}
        assert files(folder) == expected


def test_what_is_left_out_is_one_line_a_folder(tmp_path: Path):
    project, other = tmp_path / "project", tmp_path / "other"
    make(
        project, "data/train", "venv/bin/python", "results/model", "__pycache__/x", "src/out/x", "a/b/c/x.log"
    )
    (project / ".gitignore").write_text("data/\nvenv/\n__pycache__/\nout/\n*.log\n")
    (project / ".launchignore").write_text("results/\n")
    make(other, "x")
    line = "by .gitignore: data/, venv/, src/out/; by .launchignore: results/"
    line += "; a line in .launchignore (!NAME) brings back what is ignored"
    assert left_out(looked(project)) == [f"left out {line}"]
    assert left_out(looked(project, other)) == [f"left out of project {line}"]
    (project / ".launchignore").write_text("!data/\n")
    assert "data/train" in files(project)
    assert left_out(looked(other)) == []


def test_all_that_cannot_be_read_is_named_at_once():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = Path(folder)
        (root / "closed folder").mkdir(mode=0)
        for number in range(25):
            (root / f"secret{number:02}").touch(mode=0)
        drop = "-dac_override,-dac_read_search"  # root reads all files otherwise
        without = ["setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}"] if os.getuid() == 0 else []
        launch = [*without, sys.executable, "-m", "launcher", "--dry-run", "--hosts", "node1"]
        ended = subprocess.run(
            [*launch, "--sync", folder, "true"],
            capture_output=True, text=True, timeout=50, check=False, env={"HOME": "/"}, cwd="/",
        )  # fmt: skip
    assert ended.returncode == 2
    text = (
        f"--sync: cannot be copied: '{root}/closed folder' (Permission denied), '{root}/secret00' (Permission"
    )
    assert text in ended.stderr
    assert "and 7 more; make them readable, or leave them out with a line in" in ended.stderr
