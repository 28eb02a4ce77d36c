"""The atlas: groups of attentions, their memory, crossovers and the table."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks.atlas.crossover import crossover
from benchmarks.atlas.groups import GROUPS
from benchmarks.atlas.measure import build_attention, training_step
from benchmarks.atlas.pictures import plot_groups
from benchmarks.atlas.table import AttentionRow, Table, read_table, write_table
from benchmarks.memory import step_memory
from benchmarks.timer import log_log_slope
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import FIXED_TOKENS, MIXES_ALL, SHIPPED

# Every kind is in one group, and what the groups say of the tokens that a token sees.


# Larger than any window, and than what bigbird's blocks cover.
SIDE = 28


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_kinds_that_mix_all_tokens_let_each_see_all(kind):
    attention = build_attention(kind, SIDE, 32).double().eval()
    x = torch.randn(1, SIDE * SIDE, 64, dtype=torch.float64, requires_grad=True)
    out = attention(x, (SIDE, SIDE))
    # The first tokens of bigbird see all; one in the middle does not.
    (grad,) = torch.autograd.grad(out[0, SIDE * SIDE // 2].square().sum(), x)
    assert bool((grad.abs().sum(-1) > 0).all()) == (kind in MIXES_ALL)


# What is measured, skipped and resumed, on small maps; memory as the kinds claim of themselves.


# Both above the number of tokens at which attentions are computed part by part.
SIDES = (49, 98)
LINEAR = sorted(name for name, cls in ATTENTIONS.items() if cls.traits.cost == "N" or name in FIXED_TOKENS)


def training_bytes(kind: str, side: int) -> int:
    step = partial(training_step, feat_size=(side, side))
    return step_memory(partial(build_attention, kind, side, 32), (1, side**2, 64), "cpu", step)


# Gates widen their inputs, and recurrences keep factors of each token for all directions.
MOST = {"gau": 2, "ttt_glu": 2, "vssd": 3.2, "rwkv": 4, "gla": 4, "ssm": 7, "rwkv6": 10, "mlstm": 11}
MEASURED = [
    kind if kind in ("soft", "linear", "linformer") else pytest.param(kind, marks=pytest.mark.slow) for kind in LINEAR
]


@pytest.mark.parametrize("kind", MEASURED)
def test_linear_kinds_hold_memory_linear_in_the_number_of_tokens(kind):
    """And few times that of fused softmax attention, whose memory is linear as well."""
    small, large = (training_bytes(kind, side) for side in SIDES)
    assert log_log_slope([side**2 for side in SIDES], [small, large]) <= 1.1
    assert ATTENTIONS[kind].traits.cost != "N" or large <= MOST.get(kind, 1.5) * training_bytes("softmax", SIDES[1])


def test_quadratic_kinds_do_not():
    assert log_log_slope([side**2 for side in SIDES], [training_bytes("gaussian", side) for side in SIDES]) > 1.7


# Crossovers of power laws, against closed forms.


TOKENS = (196, 784, 3136, 12544)


RATIOS = [
    # c / N crosses one at c, wherever the points lie.
    ([(n, 1000 / n) for n in TOKENS], 1000),
    ([(n, (700 / n) ** 0.3) for n in TOKENS], 700),
    ([(n, 100 / n) for n in TOKENS], "always"),
    ([(n, 1e5 / n) for n in TOKENS], "never"),
    # What counts is the last time.
    ([(1, 0.5), (10, 2), (100, 0.5)], 10**1.5),
    ([(1, 2), (10, 0.5), (100, 1)], "never"),
    ([(1, 1), (10, 0.5)], 1),
]


@pytest.mark.parametrize(("ratios", "place"), RATIOS)
def test_crossover(ratios, place):
    assert crossover(ratios) == (place if isinstance(place, str) else pytest.approx(place))


# Tables that are written are read as they were; files with a mistake are refused.


ROW = AttentionRow("soft", "N", "training", 32, 784, 9, 0.5, 0.25, 0.75, 2.0, 1.5, 2.5, 3.0, "unstable")
SKIPPED = replace(
    ROW, tokens=3136, rounds=0, seconds=None, seconds_lower=None, seconds_upper=None, note="skipped: too, large"
)
TABLE = Table("a machine; torch 2.15", "2026-11-23", "python -m benchmarks atlas", [ROW, SKIPPED])


def test_round_trip(tmp_path):
    write_table(tmp_path / "atlas.csv", TABLE)
    assert read_table(tmp_path / "atlas.csv") == TABLE


def test_picture_has_a_panel_for_each_group(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, dpi: figures.append(figure))
    plot_groups([ROW, replace(ROW, kind="softmax")], "training", 32, tmp_path / "training.png")
    assert [axes.get_title() for axes in figures[0].axes] == list(GROUPS)


def test_shipped_table():
    rows = read_table(SHIPPED).rows
    assert {row.kind for row in rows} <= ATTENTIONS.keys()
    assert len({(row.kind, row.mode, row.head_dim, row.tokens) for row in rows}) == len(rows)
    for row in rows:
        assert row.note if row.seconds is None else 0 < row.seconds_lower <= row.seconds <= row.seconds_upper
