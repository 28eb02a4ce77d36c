"""What is measured, skipped and resumed, on small maps; memory as the kinds claim of themselves."""

from functools import partial

import pytest

from benchmarks.atlas.measure import build_attention, training_step
from benchmarks.memory import step_memory
from benchmarks.timer import log_log_slope
from soft_vit.layers import ATTENTIONS
from soft_vit.layers.choice import FIXED_TOKENS

SIDES = (42, 84)
LINEAR = sorted(name for name, cls in ATTENTIONS.items() if cls.cost == "N" or name in FIXED_TOKENS)


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
