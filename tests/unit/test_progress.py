"""What lines of output tell about progress, and what is found there."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.common.cluster import TaskId
from launcher.progress import TAIL_BYTES, Findings, Pace, Progress, ProgressReader

TASK = TaskId("worker/0")
BAR = "[=>............................]"
ERASE = "\b" * 80 + "\r"
#: A bar of Keras 3, which has colours.
KERAS_3 = "\x1b[1m{}/469\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m2s\x1b[0m 5ms/step - loss: {}"


def read(*tails: str, pattern: str | None = None) -> Progress | None:
    """What the last of these ends of a log tells."""
    reader, found = ProgressReader(pattern), None
    for tail in tails:
        found = reader.read(TASK, 1, tail.encode())
    return found


@pytest.mark.promise("steps and metrics of tasks, as Keras, Estimator, tqdm and others print them")
@pytest.mark.parametrize(
    "tails, expected",
    [
        # Keras: of tf_keras, Keras 3, and with verbose=2; counted over epochs
        ([f"Epoch 2/5\n{ERASE}1/469 {BAR} - ETA: 5:32 - loss: 2{ERASE} 12/469 {BAR} - ETA: 0s - loss: 0.3\r"],
         (481, 2345, {"loss": 0.3})),
        ([f"Epoch 1/5\n469/469 {BAR} - 2s 4ms/step - loss: 0.3 - val_loss: nan\n"],
         (469, 2345, {"loss": 0.3, "val_loss": math.nan})),
        (["Epoch 3/3\n469/469 - 2s - loss: 0.3 - accuracy: 0.9 - 2s/epoch - 4ms/step\n"],
         (1407, 1407, {"loss": 0.3, "accuracy": 0.9})),
        (["Epoch 3/3\n469/469 - 2s - 4ms/step - loss: 3e-05\n"], (1407, 1407, {"loss": 3e-05})),
        ([f"Epoch 1/2\n{KERAS_3.format(12, 0.3)}{ERASE}{KERAS_3.format(13, 0.2)}"], (12, 938, {"loss": 0.3})),
        ([f"Epoch 1/2\n12/Unknown \x1b[1m1s\x1b[0m 5ms/step - loss: 0.3{ERASE}"], (12, None, {"loss": 0.3})),
        ([f"Epoch 1/2\n  12/Unknown - 1s 5ms/step - loss: 0.3{ERASE}"], (12, None, {"loss": 0.3})),
        # the beginning of the second epoch was not seen; the tail is looked at twice
        ([f"Epoch 1/5\n400/469 {BAR} - ETA: 0s\r", *2 * [f"20/469 {BAR} - ETA: 0s\r30/469 {BAR} - 1s\r"]],
         (499, 2345, {})),
        (2 * [f"400/469 {BAR} - ETA: 0s\nEpoch 2/5\n"], (469, 2345, {})),
        # an evaluation is no epoch
        ([f"Epoch 5/5\n469/469 {BAR} - 1s\n", f"13/313 {BAR} - 1s\r"], None),
        # steps, once two lines differ in nothing but numbers
        (["step 12 loss 0.3\nstep 13 loss 0.25\n"], (13, None, {"loss": 0.25})),
        (["step: 12, loss=0.3\n", "nothing\nstep: 14, loss=nan\n"], (14, None, {"loss": math.nan})),
        (["global step 12\nglobal step 13\nglobal st"], (13, None, {})),
        (["Step 1/100 - lr 1e-4 | 12ms\nStep 2/100 - lr 1e-4 | 9ms\n"], (2, 100, {"lr": 1e-4})),
        (['{"step": 1, "loss": 3}\n{"step": 2, "loss": -Infinity}\n'], (2, None, {"loss": -math.inf})),
        (["Training loss at step 0: 2.1\nSeen so far: 32 samples\nTraining loss at step 100: 1.2\n"],
         (100, None, {})),
        (["I1129 12:00:00.1 77 train.py:55] step 1 loss 2\nI1129 12:00:01.1 77 train.py:55] step 2 loss 1\n"],
         (2, None, {"loss": 1.0})),
        # TensorFlow 1
        (["INFO:tensorflow:loss = 2.3, step = 0\nINFO:tensorflow:loss = 0.9, step = 100 (1.2 sec)\n"
          "INFO:tensorflow:global_step/sec: 91.2\nINFO:tensorflow:loss = 0.3, step = 200 (1.1 sec)\n"],
         (200, None, {"loss": 0.3})),
        # YDF
        (["Train tree 3/400 train-loss:1.38 valid-loss:1.4 [total:0.8s iter:0.2s]\n"
          "Train tree 129/400 train-loss:1.16 valid-loss:1.2 [total:20.9s iter:0.1s]\n"],
         (129, 400, {"train-loss": 1.16, "valid-loss": 1.2})),
        # tqdm, with and without a total; of nested bars the longer one
        (["  0%|    | 0/1000 [00:00<?, ?it/s]\r 45%|███▌ | 450/1000 [00:10<00:12, 45.1it/s, loss=0.3]\r 46%"],
         (450, 1000, {"loss": 0.3})),
        (["450it [00:10, 45.1it/s]\r"], (450, None, {})),
        (["Epochs: 10%|█ | 1/10 [01:00<09:00, 60s/it]\n\r 45%|███ | 450/1000 [00:10<00:12, 45it/s]\r\x1b[A"],
         (450, 1000, {})),
        # what no number of a step is
        (["downloaded 12/469 files\ndownloaded 13/469 files\n"], None),
        (["Step 1/3: FROM python\nStep 2/3: RUN pip install\n"], None),
        (["step 5 of setup\nstep 5 of setup\n", "step 5 of setup\n"], None),
        (["INFO:tensorflow:global_step/sec: 91.2\nINFO:tensorflow:global_step/sec: 92.2\n"], None),
        (["64 bytes from ::1: icmp_seq=1 time=0.02 ms\n64 bytes from ::1: icmp_seq=2 time=0.03 ms\n"], None),
        (["Epoch 1/5\nEpoch 2/5\n", "footstep 1\nfootstep 2\n", "steps per s 12\nsteps per s 13\n"], None),
        ([" 1  0  0 1234/5678 12 3\n 2  0  0 1235/5678 12 3\n"], None),
        (["12.3M/45.6M [00:10<00:20, 1.2MB/s]\n45% 12/469 eta 5s\n"], None),
        # the end may not be complete, nor the beginning of a long tail
        (["step 1 loss 1\nstep 2 loss 0.5\nstep 3"], (2, None, {"loss": 0.5})),
        ([f"9999 step 1 x\nstep 2 x\n{'.' * TAIL_BYTES}\n"], None),
    ],
)  # fmt: skip
def test_what_is_recognized(tails: list[str], expected: tuple[float, float | None, dict[str, float]] | None):
    found = read(*tails)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert repr((found.step, found.total, dict(found.metrics))) == repr(expected)


def test_another_form_counts_only_if_it_stays():
    reader = ProgressReader()
    steps = [f"step {number} loss 1\nstep {number + 1} loss 1\n" for number in (1, 3)]
    bar = b" 45%|##   | 450/1000 [00:10<00:12, 45.1it/s]\r"
    assert reader.read(TASK, 1, steps[0].encode()) == Progress(2, None, {"loss": 1.0})
    assert reader.read(TASK, 1, bar) is None, "the bar of an evaluation"
    assert reader.read(TASK, 1, steps[1].encode()) == Progress(4, None, {"loss": 1.0})
    assert [reader.read(TASK, 1, bar) for _ in range(20)][-1] == Progress(450, 1000)
    assert reader.read(TASK, 2, b"step 1\n") is None, "nothing is known of the next attempt"


@given(st.text(st.sampled_from("step 12/=:-[]|%.\n\r\b\x1b[maEpochoanif,┃█━>e\"'"), max_size=3 * TAIL_BYTES))
def test_any_text(text: str):
    """No text makes an error, or takes long."""
    found = read(text, text)
    assert found is None or (found.step >= 0 and len(found.metrics) <= 16)


@pytest.mark.parametrize("piece", ["a-", "step 1", "|", "| 1/1 [", "1/1 [", "a ", "1.", " ", "e1", "a\t:"])
def test_no_line_takes_long(piece: str):
    """A pattern with a loop inside a loop would take longer than a test may."""
    assert read((piece * TAIL_BYTES)[: TAIL_BYTES - 1] + "\n") is None


# ---------------------------------------------------------------------- --progress


PATTERN = r"it (?P<step>[\d,]+)(?: of (?P<total>\d+))?: (?P<loss>\S+)(?: (?P<lr>\d+))?"


@pytest.mark.parametrize(
    "tail, expected",
    [
        ("it 1,200 of 5000: 0.5 7\nno\n", Progress(1200, 5000, {"loss": 0.5, "lr": 7.0})),
        ("it 12: 0.5\nit 13: high\nit 14: 0.4", Progress(13, None, {})),
        ("it ,: 0.5\n", None),
        ("step 1 loss 2\nstep 2 loss 1\n", None),
    ],
)
def test_the_pattern_of_the_user(tail: str, expected: Progress | None):
    assert read(tail, pattern=PATTERN) == expected


def test_a_pattern_that_takes_too_long_is_given_up():
    reader = ProgressReader(r"(?P<step>\d+) (.*.*.*.*.*.*)+[yz]")
    assert reader.read(TASK, 1, f"1 {'x' * 200}\n".encode() * 15) is None
    assert reader.has_given_up
    assert reader.read(TASK, 1, b"1 y\n") is None


# ---------------------------------------------------------------------- findings


def test_what_is_no_number_is_named_once_in_an_attempt():
    findings = Findings()
    bad = Progress(120, None, {"loss": math.nan, "accuracy": 0.5, "norm": math.inf})
    (noticed,) = findings.observe(1.0, TASK, 1, bad)
    assert (noticed.kind, noticed.task) == ("nan", TASK)
    assert "loss is nan" in noticed.text and "norm is inf" in noticed.text and "120" in noticed.text
    assert not [*findings.observe(2.0, TASK, 1, bad)]
    assert len([*findings.observe(3.0, TASK, 2, bad)]) == 1
    assert not [*findings.observe(3.0, TaskId("worker/1"), 1, Progress(1, None, {"loss": 1.0}))]


def slow(role: str, *paces: tuple[float | None, ...]) -> list[str]:
    """The tasks of a role that are named when they go on like that: steps per second, cores, GPU."""
    findings, named = Findings(), list[str]()
    for at in range(0, 120, 5):
        tasks = {TaskId(f"{role}/{number}"): Pace(1, *pace) for number, pace in enumerate(paces)}
        named += [noticed.task for noticed in findings.compare(float(at), tasks)]
    return named


@pytest.mark.promise("a task that is slower than the others of its role, or awaited by them, is named once")
@pytest.mark.parametrize(
    "role, paces, expected",
    [
        ("worker", [(10.0,), (9.0,), (4.0,)], ["worker/2"]),
        ("worker", [(10.0,), (9.0,), (5.0,)], []),
        ("worker", [(10.0,), (1.0,)], ["worker/1"]),
        ("worker", [(10.0,), (9.0,), (0.0,), (1.0,)], ["worker/2", "worker/3"]),
        ("worker", [(10.0,), (None,), (None,)], []),
        ("ps", [(10.0,), (10.0,), (1.0,)], []),
        ("evaluator", [(10.0,), (1.0,)], []),
        # all are equally slow: who computes while the others wait?
        ("worker", [(5.0, 0.3), (5.1, 0.4), (4.9, 0.95)], ["worker/2"]),
        ("worker", [(5.0, 0.9), (5.1, 0.9), (4.9, 0.95)], []),
        ("worker", [(5.0, 0.01), (5.1, 0.01), (4.9, 0.05)], []),
        ("worker", [(5.0, None), (5.1, 0.4), (4.9, 2.0)], []),
        ("worker", [(5.0, 0.5, 20.0), (5.1, 0.5, 95.0), (4.9, 0.5, 30.0)], ["worker/1"]),
        ("worker", [(5.0, 0.2, 20.0), (5.1, 0.2, 95.0), (4.9, 1.5, 30.0)], []),
    ],
)
def test_slow_tasks(role: str, paces: list[tuple[float | None, ...]], expected: list[str]):
    assert slow(role, *paces) == expected


def test_a_task_that_is_slow_for_a_moment_is_not_named():
    findings, fast, late = Findings(), Pace(1, 10.0), Pace(1, 1.0)
    for at in range(0, 300, 5):
        tasks = {TASK: fast, TaskId("worker/1"): late if at % 20 == 0 else fast}
        assert not [*findings.compare(float(at), tasks)]
