"""Memory against length: the claims that the kinds make of themselves, on short maps and shallow stacks."""

import pytest

from soft_vit.analysis.lengths import lengths_table, log_log_slope, measure_all, measure_lengths, plot_lengths
from soft_vit.layers import ATTENTIONS

LINEAR = sorted(name for name, cls in ATTENTIONS.items() if cls.cost in ("N", "N*M"))


def test_slope_of_a_power_law():
    x = [1, 2, 5, 9]
    assert log_log_slope(x, [3 * v**1.7 for v in x]) == pytest.approx(1.7)


@pytest.mark.parametrize("attention", LINEAR)
def test_linear_kinds_hold_memory_linear_in_the_number_of_tokens(attention):
    curve = measure_lengths(attention, (2, 4, 8), timed=False, depth=2)
    assert curve.lengths == [1568, 3136, 6272]
    assert curve.memory_slope <= 1.1


def test_quadratic_kinds_do_not():
    assert measure_lengths("gaussian", (2, 4, 8), timed=False, depth=2).memory_slope > 1.7


def test_figure_and_table(tmp_path):
    curves, errors = measure_all(["soft", "nothing"], progress=False, multiples=(1, 2), rounds=3, depth=1)
    assert [curve.attention for curve in curves] == ["soft"]
    assert "attention='nothing' is not known" in errors["nothing"]
    assert curves[0].time_slope is not None
    table = lengths_table(curves, errors)
    assert table.splitlines()[-1].startswith("| nothing | ValueError")
    paths = plot_lengths(curves, tmp_path / "figure.png")
    assert [path.suffix for path in paths] == [".png", ".svg"]
    assert all(path.stat().st_size > 5000 for path in paths)
