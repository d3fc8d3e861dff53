"""Clocks: what samples tell, and what is said of them."""

from __future__ import annotations

import pytest

from launcher.checking.records import Offset, offset_of
from tests.unit.checking.seen import PROBLEM, WARNING, only, said, sight


def test_the_quickest_answer_counts():
    samples = [(100.0, 105.9, 101.0), (102.0, 107.01, 102.02), (103.0, 109.0, 104.0)]
    offset = offset_of(samples)
    assert offset is not None
    assert offset.seconds == pytest.approx(5.0)
    assert offset.uncertainty == pytest.approx(0.01)


def test_no_answer_tells_nothing():
    assert offset_of([]) is None


def test_a_clock_that_jumped_back_while_we_asked():
    assert offset_of([(100.0, 99.0, 99.5)]) == Offset(-0.75, 0.0)


@pytest.mark.parametrize(
    ("off", "severity", "text"),
    [
        (1.5, WARNING, "its clock is 1.5s ahead of the others"),
        (-29.0, WARNING, "its clock is 29s behind the others"),
        (31.0, PROBLEM, "its clock is 31s ahead of the others"),
        (-7200.0, PROBLEM, "its clock is 2h00m behind the others"),
    ],
)
def test_one_that_is_off(off, severity, text):
    found = only(sight(1), sight(2, offset=off), sight(3))
    assert (found.severity, found.kind, found.hosts, found.seen) == (severity, "clock", ("node2",), text)


def test_off_by_no_more_than_the_measurement_may_be():
    assert said(sight(1), sight(2)._replace(offset=Offset(3.0, 2.5)), sight(3)) == []


def test_it_is_the_launcher_that_is_off():
    found = only(*(sight(n, offset=50.0) for n in (1, 2, 3)))
    assert (found.severity, found.hosts) == (PROBLEM, ())
    assert found.seen == "the clock of this machine is 50s behind the others"


@pytest.mark.parametrize(("off", "way"), [(5.0, "ahead of"), (-5.0, "behind")])
def test_one_host_is_compared_with_this_machine(off: float, way: str):
    found = only(sight(1, offset=off))
    assert (found.hosts, found.seen) == (("node1",), f"its clock is 5.0s {way} this machine's")


def test_one_that_did_not_say():
    assert said(sight(1), sight(2)._replace(offset=None)) == []
