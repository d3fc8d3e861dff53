"""Which rule files count for a path: those of its folder and of all above, up to the repository's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from launcher.luggage.ignore import GIT_FOLDER, RULE_FILES, Rules, read_rules

#: For each of `RULE_FILES`, the rules that count in a folder, those of the deepest folder first.
RulesByKind = tuple[tuple[Rules, ...], ...]


def ignored_by(path: bytes, is_folder: bool, rules: RulesByKind) -> str:
    """The kind of rule file that leaves it out; empty: none does.

    The last kind wins; of one kind, the file in the deepest folder.
    """
    for name, kind in zip(reversed(RULE_FILES), reversed(rules), strict=True):
        for one in kind:
            verdict = one.verdict(path, is_folder)
            if verdict is not None:
                return name if verdict else ""
    return ""


def own_rules(root: bytes, folder: bytes, name: bytes, start: bytes) -> Rules:
    """The rules in a folder's own rule file."""
    path = b"/".join(filter(None, (root, folder, name)))
    depth = len(start) + (len(folder) + 1 if folder else 0)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Rules(depth)  # a link counts for nothing, as in git; what can't be read fails as a file
    with open(fd, "rb") as file:
        return read_rules(file.read() if stat.S_ISREG(os.fstat(fd).st_mode) else b"", depth)


def rules_above(root: bytes) -> tuple[RulesByKind, bytes]:
    """The rules in the folders above, up to the top of the git repository that the folder is in.

    Returns:
        For each kind of rule file, the deepest folder first; and what leads from the top of the repository
        to the folder, with a slash at its end. Nothing, if it is in none, or is ignored itself.
    """
    none: tuple[RulesByKind, bytes] = (tuple(() for _ in RULE_FILES), b"")
    above = list(_up_to_repository(root))
    if not above:
        return none
    top = above[-1]
    rules: RulesByKind = none[0]
    for folder in reversed(above):
        inside = folder[len(top) + 1 :]
        rules = tuple(
            (own_rules(top, inside, name, b""), *known)
            for name, known in zip(map(str.encode, RULE_FILES), rules, strict=True)
        )
        below = root[len(folder) + 1 :].split(b"/")[0]
        if ignored_by(inside + b"/" + below if inside else below, True, rules):
            return none
    return rules, root[len(top) + 1 :] + b"/"


def _up_to_repository(root: bytes) -> Iterator[bytes]:
    """The folders above, from the nearest to the top of the repository; none if there is no repository."""
    if os.path.lexists(root + b"/" + GIT_FOLDER.encode()):
        return
    above: list[bytes] = []
    folder = os.path.dirname(root)
    while folder != b"/":
        above.append(folder)
        if os.path.lexists(folder + b"/" + GIT_FOLDER.encode()):
            yield from above
            return
        folder = os.path.dirname(folder)
