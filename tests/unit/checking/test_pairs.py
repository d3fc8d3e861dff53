"""Who tries whom, and what is said of it."""

from __future__ import annotations

import pytest

from launcher.checking.pairs import ALL_UP_TO, RANDOM_PAIRS, choose_pairs, milliseconds
from launcher.checking.records import Reach
from tests.unit.checking.seen import PROBLEM, WARNING, only, pair, said, sight

FOUR = [sight(n) for n in (1, 2, 3, 4)]


def names(count: int) -> list[str]:
    return [f"node{n}" for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 8, ALL_UP_TO])
def test_few_hosts_try_everybody(count: int):
    hosts = names(count)
    assert choose_pairs(hosts, 7) == [(a, b) for a in hosts for b in hosts]


@pytest.mark.parametrize("count", [ALL_UP_TO + 1, 100, 1000])
def test_many_hosts_try_a_ring_and_some(count: int):
    hosts = names(count)
    chosen = choose_pairs(hosts, 7)
    assert len(set(chosen)) == len(chosen)
    ring = set(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
    assert ring <= set(chosen)
    assert {(b, a) for a, b in chosen} == set(chosen), "both ways"
    assert {(name, name) for name in hosts} <= set(chosen)
    possible = count * (count - 1) // 2
    assert len(chosen) == 2 * min(possible, count + RANDOM_PAIRS) + count


def test_the_seed_draws_the_same_pairs_again():
    hosts = names(60)
    assert choose_pairs(hosts, 1) == choose_pairs(hosts, 1) != choose_pairs(hosts, 2)


def test_all_is_well():
    assert said(*FOUR, pairs=[pair(a, b) for a in range(1, 5) for b in range(1, 5)]) == []


def test_one_that_nobody_reaches_is_said_once():
    pairs = [
        pair(a, b, Reach.TIMED_OUT if b == 4 and a != 4 else Reach.OK)
        for a in (1, 2, 3, 4)
        for b in (1, 2, 3, 4)
    ]
    found = only(*FOUR, pairs=pairs)
    assert (found.severity, found.kind, found.hosts) == (PROBLEM, "unreachable", ("node1", "node2", "node3"))
    assert found.seen == "can't reach node4: timed out"
    assert "firewall" in found.advice


def test_one_that_reaches_nobody():
    pairs = [pair(1, 1), *(pair(1, b, Reach.NO_ROUTE, why="Network is unreachable") for b in (2, 3, 4))]
    found = only(*FOUR, pairs=pairs)
    assert found.hosts == ("node1",)
    assert found.seen == "can't reach any of the 3 others: no route (Network is unreachable)"


def test_one_that_does_not_reach_itself():
    found = only(sight(1), pairs=[pair(1, 1, Reach.REFUSED)])
    assert found.seen == "can't reach itself at node1: refused"


def test_what_was_not_tried_is_no_finding_of_a_pair():
    assert said(*FOUR, pairs=[pair(1, 2, Reach.UNTRIED)]) == []


@pytest.mark.parametrize("reach", [reach for reach in Reach if reach not in (Reach.OK, Reach.UNTRIED)])
def test_every_way_to_fail_is_a_problem(reach: Reach):
    found = only(*FOUR, pairs=[pair(1, 1), pair(1, 2, reach), pair(1, 3), pair(1, 4)])
    assert (found.severity, found.seen) == (PROBLEM, f"can't reach node2: {reach.value}")
    assert found.advice or reach is Reach.FAILED


def test_slow_in_itself():
    found = only(*FOUR[:2], pairs=[pair(1, 2, rtt_s=0.12)])
    assert (found.severity, found.kind) == (WARNING, "slow")
    assert found.seen == "round trips between it and node2 take up to 120 ms"


def test_slow_beside_the_others():
    pairs = [pair(a, b, rtt_s=0.02 if (a, b) == (1, 2) else 0.0003) for a in (1, 2, 3) for b in (1, 2, 3)]
    found = only(*FOUR[:3], pairs=pairs)
    assert found.seen == "round trips between it and node2 take up to 20 ms; half of all take 0.30 ms or less"


def test_one_slow_host_is_said_once():
    pairs = [
        pair(a, b, rtt_s=0.2 if a != b and 3 in (a, b) else None) for a in range(1, 5) for b in range(1, 5)
    ]
    found = only(*FOUR, pairs=pairs)
    assert found.hosts == ("node3",)
    assert found.seen.startswith("round trips between it and node1, node2, node4 take up to 200 ms; half")


def test_a_network_that_is_a_bit_slow_everywhere_is_no_finding():
    assert said(*FOUR[:2], pairs=[pair(1, 2, rtt_s=0.02), pair(2, 1, rtt_s=0.03)]) == []


def test_lost_packets():
    found = only(
        *FOUR, pairs=[pair(1, 2, retransmits=1), pair(1, 3, retransmits=2), pair(2, 1, retransmits=1)]
    )
    assert (found.severity, found.kind, found.hosts) == (WARNING, "loss", ("node1",))
    assert found.seen == "3 packets to node2, node3 were lost and sent again"


@pytest.mark.parametrize(("seconds", "text"), [(0.0002, "0.20 ms"), (0.0034, "3.4 ms"), (0.12, "120 ms")])
def test_milliseconds(seconds: float, text: str):
    assert milliseconds(seconds) == text
