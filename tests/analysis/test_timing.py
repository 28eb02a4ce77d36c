"""Who is timed when, and what becomes of the figures."""

import csv
from dataclasses import dataclass
from functools import partial

import pytest

from soft_vit.analysis.timing import rows_as_csv, spread, time_in_turn


def test_contenders_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = time_in_turn({name: partial(calls.append, name) for name in "ab"}, 4, "cpu")
    assert calls == ["a", "b"] * 5
    assert {name: len(times) for name, times in seconds.items()} == {"a": 4, "b": 4}


def test_too_few_rounds():
    with pytest.raises(ValueError, match="rounds=2"):
        time_in_turn({"a": list}, 2, "cpu")


def test_spread_is_median_and_quartiles():
    assert spread([5, 1, 4, 2, 3]) == (3, 1.5, 4.5)


@dataclass
class Row:
    name: str
    value: float | None


def test_csv_repeats_what_is_the_same():
    text = rows_as_csv([Row("a, b", 0.5), Row("c", None)], machine="x")
    assert list(csv.DictReader(text.splitlines())) == [
        {"machine": "x", "name": "a, b", "value": "0.5"},
        {"machine": "x", "name": "c", "value": ""},
    ]
