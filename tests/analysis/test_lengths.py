"""Memory against length: the claims that the kinds make of themselves, on short maps and shallow stacks."""

import pytest

from soft_vit.analysis import lengths
from soft_vit.analysis.lengths import (
    FIXED_TOKENS,
    lengths_table,
    measure_all,
    measure_lengths,
    plot_lengths,
)
from soft_vit.layers import ATTENTIONS

LINEAR = sorted(name for name, cls in ATTENTIONS.items() if cls.cost == "N" or name in FIXED_TOKENS)


@pytest.mark.parametrize("attention", LINEAR)
def test_linear_kinds_hold_memory_linear_in_the_number_of_tokens(attention):
    curve = measure_lengths(attention, (2, 8), timed=False, depth=1)
    assert curve.lengths == [1568, 6272]
    assert curve.memory_slope <= 1.1


def test_quadratic_kinds_do_not():
    assert measure_lengths("gaussian", (2, 8), timed=False, depth=1).memory_slope > 1.7


def test_figure_and_table(tmp_path, monkeypatch):
    def measure(attention, **kwargs):
        if attention == "softmax":
            raise MemoryError("no room\nat all")
        return measure_lengths(attention, **kwargs)

    monkeypatch.setattr(lengths, "measure_lengths", measure)
    curves, errors = measure_all(["soft", "softmax"], multiples=(1, 2), rounds=3, depth=1)
    assert [curve.attention for curve in curves] == ["soft"]
    assert errors == {"softmax": "MemoryError: no room"}
    assert curves[0].time_slope is not None
    table = lengths_table(curves, errors)
    assert table.splitlines()[-1].startswith("| softmax | MemoryError: no room |")
    paths = plot_lengths(curves, tmp_path / "figure.v1")
    assert [path.name for path in paths] == ["figure.v1.png", "figure.v1.svg"]
    assert all(path.stat().st_size > 5000 for path in paths)


@pytest.mark.parametrize(
    ("attentions", "options", "message"),
    [
        (["soft", "nothing"], {}, "attention='nothing' is not known"),
        (["soft"], {"device": "gpu"}, "no device 'gpu'"),
        (["soft"], {"rounds": 0}, "rounds is 0; give at least 1"),
    ],
)
def test_mistakes_are_seen_before_anything_is_measured(attentions, options, message, monkeypatch):
    monkeypatch.setattr(lengths, "measure_lengths", None)
    with pytest.raises(ValueError, match=message):
        measure_all(attentions, **options)
