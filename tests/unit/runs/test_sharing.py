"""Which folders other machines may see."""

from __future__ import annotations

import pytest

from launcher.runs import sharing

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
auto /home autofs rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/fast xfs rw 0 0
me@there:/data /mnt/my\\040data fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/homes/a", "ext4"),
        ("/home", "nfs4"),
        ("/home/a", "nfs4"),
        ("/home/fast/a", "xfs"),
        ("/mnt/my data/a", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_counts(path: str, kind: str):
    assert sharing.kind_at(path, MOUNTS) == kind


def test_where_nothing_is_known_of():
    assert sharing.kind_at("/a", "") == ""
    assert not sharing.is_shared("/proc")
