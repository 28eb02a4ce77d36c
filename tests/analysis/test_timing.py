"""Who is timed when, and what becomes of the figures."""

from functools import partial
from itertools import pairwise

import pytest

from soft_vit.analysis import timing
from soft_vit.analysis.timing import numbered, seconds_of, spread, time_in_turn


def test_names_that_come_again_are_numbered():
    assert numbered(["a", "b", "a", "a+x", "a"]) == {"a": "a", "b": "b", "a (2)": "a", "a+x": "a+x", "a (3)": "a"}


def test_contenders_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = time_in_turn({name: partial(calls.append, name) for name in "abc"}, 20, "cpu")
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 21
    assert {"".join(sorted(turn)) for turn in rounds} == {"abc"}
    assert {name: len(times) for name, times in seconds.items()} == {"a": 20, "b": 20, "c": 20}


def test_everyone_comes_after_everyone():
    calls = []
    time_in_turn({name: partial(calls.append, name) for name in "abc"}, 20, "cpu")
    after = {first + second for first, second in pairwise(calls)}
    assert after >= {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_a_short_step_on_a_gpu(monkeypatch):
    """One call in each round is not counted, and as many follow as make a measurement long enough."""
    calls = []
    monkeypatch.setattr(timing, "seconds_of", lambda step, device, repeats=1: calls.append(repeats) or 1e-3)
    assert time_in_turn({"a": partial(calls.append, "uncounted")}, 3, "cuda") == {"a": [1e-3] * 3}
    assert calls == ["uncounted", 1] + ["uncounted", 6] * 3


def test_repeats_are_averaged(monkeypatch):
    calls, clock = [], iter([3.0, 13.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert seconds_of(partial(calls.append, None), "cpu", repeats=5) == 2
    assert len(calls) == 5


def test_too_few_rounds():
    with pytest.raises(ValueError, match="rounds=2"):
        time_in_turn({"a": list}, 2, "cpu")


def test_spread_is_median_and_quartiles():
    assert spread([5, 1, 4, 2, 3]) == (3, 1.5, 4.5)
