"""The order in which contenders are timed, and how calls are counted and averaged."""

from functools import partial
from itertools import pairwise

from benchmarks import timer
from benchmarks.timer import numbered, seconds_of, time_in_turn


def test_names_that_come_again_are_numbered():
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


def test_rounds_that_fit_a_time_and_short_steps_that_are_repeated(monkeypatch):
    calls, given = [], []
    monkeypatch.setattr(timer, "seconds_of", lambda step, device, repeats=1: calls.append(repeats) or 0.5)
    seconds = time_in_turn(dict.fromkeys("ab", print), lambda s: given.append(s) or 4, "cpu", least_seconds=1.2)
    assert seconds == {"a": [0.5] * 4, "b": [0.5] * 4}
    # Each of both runs twice in the warm-up round, then three times in a row.
    assert calls == [1] * 4 + [3] * 8
    assert given == [3.0]


def test_a_short_step_on_a_gpu(monkeypatch):
    """One call in each round is not counted, and as many follow as make a measurement long enough."""
    calls = []
    monkeypatch.setattr(timer, "seconds_of", lambda step, device, repeats=1: calls.append(repeats) or 1e-3)
    assert time_in_turn({"a": partial(calls.append, "uncounted")}, 3, "cuda") == {"a": [1e-3] * 3}
    assert calls == ["uncounted", 1] + ["uncounted", 6] * 3


def test_repeats_are_averaged(monkeypatch):
    calls, clock = [], iter([3.0, 13.0])
    monkeypatch.setattr(timer.time, "perf_counter", lambda: next(clock))
    assert seconds_of(partial(calls.append, None), "cpu", repeats=5) == 2
    assert len(calls) == 5
