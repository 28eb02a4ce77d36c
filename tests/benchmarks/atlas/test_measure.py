"""What is measured, skipped and resumed, on small maps; memory as the kinds claim of themselves."""

from functools import partial

import pytest

from benchmarks.atlas import measure as module
from benchmarks.atlas.measure import build_attention, measure, training_step
from benchmarks.memory import step_memory
from benchmarks.timer import log_log_slope
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import FIXED_TOKENS

SIDES = (42, 84)
SMALL = dict(tokens=(49, 100), seconds=0.0)
LINEAR = sorted(name for name, cls in ATTENTIONS.items() if cls.cost == "N" or name in FIXED_TOKENS)


@pytest.fixture(autouse=True)
def short_calls(monkeypatch):
    monkeypatch.setattr(module, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(module, "HEAD_DIMS", (32,))


def last(done=(), **options):
    *_, rows = measure(done, **options)
    return rows


def test_every_kind_beside_softmax_and_what_a_stopped_run_lacks(monkeypatch):
    timed = []
    time_in_turn = module.time_in_turn
    monkeypatch.setattr(
        module, "time_in_turn", lambda steps, *a, **k: timed.append(set(steps)) or time_in_turn(steps, *a, **k)
    )
    first = list(next(rows for rows in measure([], **SMALL, kinds=["linear"]) if rows))
    rows = last(first, **SMALL, kinds=["linear"])
    assert rows[: len(first)] == first
    assert timed == [{"softmax", "linear"}] * 4
    # Another kind is measured in turn with softmax, whose rows stay.
    more = last(rows, **SMALL, kinds=["linear", "none"])
    assert timed[4:] == [{"softmax", "none"}] * 4
    assert more[: len(rows)] == rows
    assert {row.kind for row in more[len(rows) :]} == {"none"}
    assert len(more) == 3 * 2 * 2
    for row in more:
        assert row.rounds == 3
        assert row.seconds_lower <= row.seconds <= row.seconds_upper
        assert row.megabytes > 0
        assert row.kind != "softmax" or row.ratio == row.ratio_lower == row.ratio_upper == 1
        assert row.note == ("unstable" if row.seconds_upper - row.seconds_lower > 0.1 * row.seconds else "")


def training_bytes(kind: str, side: int) -> int:
    step = partial(training_step, feat_size=(side, side))
    return step_memory(partial(build_attention, kind, side, 32), (1, side**2, 64), "cpu", step)


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("soft", "linear", "linformer") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in LINEAR
    ],
)
def test_linear_kinds_hold_memory_linear_in_the_number_of_tokens(kind):
    """With little more at the larger size than fused softmax attention, whose memory is linear as well."""
    small, large = (training_bytes(kind, side) for side in SIDES)
    assert log_log_slope([side**2 for side in SIDES], [small, large]) <= 1.1
    assert ATTENTIONS[kind].cost != "N" or large <= 1.5 * training_bytes("softmax", SIDES[1])


def test_quadratic_kinds_do_not():
    assert log_log_slope([side**2 for side in SIDES], [training_bytes("gaussian", side) for side in SIDES]) > 1.7
