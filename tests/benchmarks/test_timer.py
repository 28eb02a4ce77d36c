"""The order in which contenders are timed, how calls are counted and averaged, and steps without memory."""

from functools import partial
from itertools import pairwise

import torch

from benchmarks import timer
from benchmarks.timer import measure, numbered, second_of_two, seconds_of, time_in_turn


def test_repeated_names_are_numbered():
    assert numbered(["a", "b", "a", "a+x", "a"]) == {"a": "a", "b": "b", "a (2)": "a", "a+x": "a+x", "a (3)": "a"}


def test_contenders_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = time_in_turn({name: partial(calls.append, name) for name in "abc"}, 20, "cpu")
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 21
    assert {"".join(sorted(turn)) for turn in rounds} == {"abc"}
    assert {name: len(times) for name, times in seconds.items()} == {"a": 20, "b": 20, "c": 20}
    # Everyone comes after everyone.
    assert {first + second for first, second in pairwise(calls)} >= {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_rounds_that_fit_a_time_and_short_steps_that_are_repeated():
    calls, given = [], []
    seconds = time_in_turn(
        dict.fromkeys("ab", print),
        lambda s: given.append(s) or 4,
        "cpu",
        min_seconds=1.2,
        clock=lambda step, device, repeats: calls.append(repeats) or 0.5,
    )
    assert seconds == {"a": [0.5] * 4, "b": [0.5] * 4}
    # Each of both runs twice in the warm-up round, then three times in a row.
    assert calls == [1] * 4 + [3] * 8
    assert given == [3.0]


def test_a_short_step_on_a_gpu():
    """One call in each round is not counted, and as many follow as make a measurement long enough."""
    calls = []
    step = partial(calls.append, "uncounted")
    clock = lambda step, device, repeats: calls.append(repeats) or 1e-3  # noqa: E731
    assert time_in_turn({"a": step}, 3, "cuda", clock=clock) == {"a": [1e-3] * 3}
    assert calls == ["uncounted", 1] + ["uncounted", 6] * 3


def test_the_second_run_in_a_row_is_timed(monkeypatch):
    calls = []
    monkeypatch.setattr(timer, "seconds_of", lambda step, *_: calls.append("timed") or step() or 2.0)
    assert second_of_two(partial(calls.append, "run"), "cpu") == 2.0
    assert calls == ["run", "timed", "run"]


def test_repeats_are_averaged(monkeypatch):
    calls, clock = [], iter([3.0, 13.0])
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(clock))
    assert seconds_of(partial(calls.append, None), "cpu", repeats=5) == 2
    assert len(calls) == 5


def test_a_step_without_memory_leaves_the_others_alone():
    given = torch.zeros(10)
    steps = {"large": lambda: torch.empty(1 << 50), "small": lambda: given * 2, "uncounted": lambda: None}
    large, small, uncounted = measure(steps, "forward", dict.fromkeys(steps, 7), 3, "cpu", counted=("large", "small"))
    assert (large.seconds, large.memory) == ((), None)
    assert (len(small.seconds), small.memory) == (3, 40)
    assert (len(uncounted.seconds), uncounted.memory) == (3, None)
