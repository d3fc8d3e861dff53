"""The state of a feed, without threads, sockets and time: any history loses no row, and errors are clear."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.common.errors import FeedError, FeedTimeout
from launcher.feed import call as call_module
from launcher.feed.link import WINDOW_BYTES
from tests.conftest import examples
from tests.unit.feed.world import World

anything = settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
LARGE = bytes(100_000)
HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["works", "works", "takes", "takes", "opens", "breaks", "ends", "restarts", "time"]),
        st.integers(0, 9),
    ),
    max_size=80,
)


def parts(sizes: list[int]) -> list[range]:
    """Partitions of these sizes, of the numbers from 0."""
    ends = [0, *itertools.accumulate(sizes)]
    return [range(first, last) for first, last in itertools.pairwise(ends)]


def play(world: World, history: list[tuple[str, int]]) -> None:
    """These events, as far as they are possible; worker/0 is never lost for good."""
    for event, number in history:
        player = world.tasks[number % len(world.tasks)]
        if world.is_over:
            return
        if event == "works" and world.threads:
            world.works([*world.threads][number % len(world.threads)])
        elif event == "takes" and player.coming:
            player.takes()
        elif event == "opens" and not world.state.tasks[player.name].ended:
            player.opens()
        elif event == "breaks":
            player.breaks()
        elif event == "ends" and player is not world.tasks[0]:
            player.is_lost()
        elif event == "restarts":
            world.state.on_restarting({player.name: player.attempt}, world.now)
            player.breaks()
            player.starts_again()
        elif event == "time":
            world.passes(0.3)


@anything
@given(
    st.lists(st.integers(0, 90), max_size=9),
    st.sampled_from([list, iter, lambda part: lambda: part]),
    *(st.integers(1, 4), st.booleans(), HISTORIES),
)
def test_every_row_is_fed_and_every_result_comes_in_order(
    sizes: list[int], form: Any, tasks: int, inference: bool, history: list[tuple[str, int]]
):
    """Of lists, of iterators that give their rows once, of code that the tasks run."""
    world = World(tasks, map(form, parts(sizes)), inference)
    play(world, history)
    world.go_on()
    rows = list(range(sum(sizes)))
    had = Counter(row for player in world.tasks for batch in player.batches for row in batch)
    assert set(had) == set(rows) and world.call.error is None
    assert world.results == ([-row for row in rows] if inference else [])
    if not {"breaks", "ends", "restarts", "opens"} & {event for event, _ in history}:
        assert set(had.values()) <= {1}


@pytest.mark.promise("`restarts=` of `TFCluster` and `TFParallel`: rows, results and instances")
@anything
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 90), st.lists(st.integers(0, 9), max_size=60))
def test_equal_batches_when_all_tasks_start_again(tasks: int, batch: int, rows: int, order: list[int]):
    """The rounds that not all have consumed are fed again to all, who get equal numbers then."""
    world = World(tasks, [range(rows)], batch_size=batch, equal="pad")
    for number in order:
        player = world.tasks[number % tasks]
        if player.link is None:
            player.opens()
        world.work()
        if player.coming:
            player.takes()
    before = {row for player in world.tasks for taken in player.batches for row in taken}
    if not world.is_over:
        world.state.on_restarting({player.name: 1 for player in world.tasks}, world.now)
        for player in world.tasks:
            player.batches.clear()
            player.breaks()
            player.starts_again()
        world.go_on()
    assert world.call.error is None
    assert len({sum(map(len, player.batches)) for player in world.tasks}) == 1
    after = {row for player in world.tasks for taken in player.batches for row in taken}
    assert before | after == set(range(rows))


def test_a_connection_that_breaks_within_equal_batches():
    world = World(2, [range(100)], batch_size=5).begins()
    world.tasks[1].breaks()
    world.passes(1.1)
    world.tasks[1].opens()
    with pytest.raises(FeedError, match=r"worker/1 is lost \(its connection broke\); equal batches"):
        world.passes(0.1)


def test_a_partition_that_is_too_large_to_be_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call_module, "MAX_KEPT_BYTES", 100)
    world = World(2, [iter(range(500))]).begins(1)
    world.tasks[0].is_lost()
    assert re.search("worker/0 is lost .was killed.; partition 0 cannot be fed again", str(world.call.error))


def test_exactly_once():
    """The reason of a loss may be known a little later than the loss."""
    world = World(2, parts([10, 10]), exactly_once=True).begins(1)
    world.tasks[0].breaks()
    world.passes(0.9)
    world.tasks[0].is_lost()
    assert "worker/0 is lost (was killed); it had not consumed all of its rows" in str(world.call.error)


def test_each_task_gets_a_partition_before_one_gets_two():
    world = World(2, parts([1] * 6)).begins(1)
    assert len([content for kind, content in world.tasks[0].coming if content]) == 1
    world.passes(11.0)
    world.work()
    assert len([content for kind, content in world.tasks[0].coming if content]) == 6


def test_tasks_that_take_nothing_get_the_same_and_a_window_of_rows_at_most():
    window = WINDOW_BYTES // len(LARGE)
    for rows, many, least, most in (
        (10, 6, 29, 31),
        (10, 60, window, window + 20),
        (999, 2, window, window + 20),
    ):
        world = World(2, [[LARGE] * rows] * many).begins()
        for player in world.tasks:
            sent = sum(len(b"".join(content)) for _, content in player.coming) // len(LARGE)
            assert least <= sent <= most


@pytest.mark.parametrize(("both", "lost"), [(False, False), (False, True), (True, False)])
def test_results_that_nobody_takes_stop_the_rows(monkeypatch: pytest.MonkeyPatch, both: bool, lost: bool):
    """Beyond the limit only rows are sent whose results are the next."""
    monkeypatch.setattr(call_module, "MAX_RESULT_BYTES", 3000)
    data = [[number.to_bytes(2, "big") + LARGE for number in part] for part in parts([20] * 20)]
    world = World(2, data, inference=True).begins()
    world.answer = lambda task, row: int.from_bytes(row[:2], "big")
    world.takes_results = False
    for _ in range(300):
        world.work()
        for player in world.tasks[0 if both else 1 :]:
            if player.coming:
                player.takes()
    assert sum(len(batch) for player in world.tasks for batch in player.batches) < 200
    if lost:  # with the rows of the next results: another task needs room for them
        world.tasks[0].is_lost()
    world.takes_results = True
    world.go_on()
    assert world.results == list(range(400))


def test_a_task_that_owes_results():
    world = World(1, [range(10)], inference=True, timeout=5.0).begins()
    world.tasks[0].answers = False
    while world.tasks[0].coming:
        world.tasks[0].takes()
    with pytest.raises(FeedError, match="worker/0 asked for more rows, and for 5s results are missing"):
        world.passes(5.1)


@pytest.mark.parametrize("answers", [False, True])
def test_a_task_that_owes_results_is_named_once_before_the_time_is_up(answers: bool):
    world = World(1, [range(10)], inference=True, timeout=600.0).begins()
    world.tasks[0].answers = answers
    while world.tasks[0].coming:
        world.tasks[0].takes()
    told = []
    for _ in range(6):
        world.passes(5.0)
        told.append(world.state.silence_warning(world.now))
    assert [bool(each) for each in told] == ([False] * 6 if answers else [False, True, *[False] * 4])
    assert answers or all(word in told[1] for word in ("'input'", "worker/0", "10s", "batch_results()"))


def test_waits_that_have_no_limit():
    """For the source of the rows, and for a task that starts again until it has started."""
    world = World(1, [range(10)], timeout=5.0)
    world.tasks[0].opens()
    world.passes(50.0)
    world.state.on_restarting({"worker/0": 1}, world.now)
    world.tasks[0].breaks()
    world.passes(50.0)
    assert world.state.awaited_tasks(world.now) == ["worker/0"]
    world.tasks[0].starts_again()
    world.passes(1.0)
    with pytest.raises(FeedTimeout, match="worker/0 has taken no rows"):
        world.passes(5.1)


@pytest.mark.parametrize("inference", [False, True])
def test_functions_that_want_no_more_end_the_call(inference: bool):
    world = World(2, ([LARGE] * 20 for _ in itertools.count()), inference)
    for player in world.tasks:
        player.opens()
        world.work()
        player.terminates()
    if inference:
        with pytest.raises(FeedError, match="all tasks have called terminate"):
            world.passes(0.1)
    else:
        assert world.is_over and not world.state.unread_warning()


def test_no_task_is_left():
    world = World(2, [range(10)]).begins()
    for player in world.tasks:
        player.terminates()
        player.is_lost("exited with code 3")
    assert world.is_over
    world.state.end()
    world.state.begin(World(2, [range(10)]).call, world.now)
    assert not world.state.is_ready()
    world.passes(0.5)
    with pytest.raises(FeedError, match="no task is left to take its rows: worker/0 exited with code 3, w"):
        world.passes(1.0)


@pytest.mark.parametrize("finished", [True, False])
def test_the_end_of_a_feed_is_an_error_for_the_task_unless_all_is_fed(finished: bool):
    """Even if a thread is still busy with the connection."""
    world = World(1, [range(3)])
    world.tasks[0].opens()
    assert world.threads
    world.state.end()
    world.state.is_finished = finished
    world.act()
    world.state.stop("no more")
    assert [link.reason for link in world.state.links] == ["" if finished else "no more"]


def test_connections_that_are_refused():
    world = World(2, [range(10)])
    world.state.on_lost("worker/1", 2, "was killed", world.now)
    world.tasks[0].opens()
    for task, attempt, reason in (("ps/0", 1, "is not fed"), ("worker/1", 2, "has ended")):
        link = world.state.on_connected(task, attempt, world.now)
        assert link is not None and reason in (link.reason or "")
    assert world.state.on_connected("worker/0", 2, world.now) is None  # its first attempt may not have ended
    world.state.on_started("worker/0", 2)
    link = world.state.on_connected("worker/0", 1, world.now)
    assert link is not None and link.reason == "worker/0 has started again"
