"""The order in which contenders are timed, how calls are counted and averaged, and steps without memory."""

from functools import partial
from itertools import pairwise

import torch

from benchmarks.timer import measure, time_in_turn


def test_contenders_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = time_in_turn({name: partial(calls.append, name) for name in "abc"}, 20, "cpu")
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 21
    assert {"".join(sorted(turn)) for turn in rounds} == {"abc"}
    assert {name: len(times) for name, times in seconds.items()} == {"a": 20, "b": 20, "c": 20}
    # Everyone comes after everyone.
    assert {first + second for first, second in pairwise(calls)} >= {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_a_step_without_memory_leaves_the_others_alone():
    given = torch.zeros(10)
    steps = {"large": lambda: torch.empty(1 << 50), "small": lambda: given * 2, "uncounted": lambda: None}
    large, small, uncounted = measure(steps, "forward", dict.fromkeys(steps, 7), 3, "cpu", counted=("large", "small"))
    assert (large.seconds, large.memory) == ((), None)
    assert (len(small.seconds), small.memory) == (3, 40)
    assert (len(uncounted.seconds), uncounted.memory) == (3, None)
