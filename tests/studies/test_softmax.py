"""The ledger says where softmax is, what it normalises, and how attention grows: models whose answer is known."""

import pytest
import timm
from captured_models import TWO_STAGES

from studies.softmax import Rows, kind_of_softmax, ledgers, model_groups, softmax_ledger


@pytest.mark.parametrize(
    ("small", "large", "kind"),
    [
        (Rows(3, 196, 196), Rows(3, 784, 784), "full"),
        # Keys reduced by windows grow too.
        (Rows(3, 784, 49), Rows(3, 3136, 196), "full"),
        (Rows(12, 49, 49), Rows(48, 49, 49), "windows"),
        (Rows(3, 784, 49), Rows(3, 3136, 49), "rows of fixed length"),
        (Rows(3, 49, 784), Rows(3, 49, 3136), "49 rows"),
        (Rows(3, 1, 784), Rows(3, 1, 3136), "one row"),
    ],
)
def test_what_grows_tells_the_kind(small: Rows, large: Rows, kind: str) -> None:
    assert kind_of_softmax(small, large) == kind


# Softmax of every stage, of which two show as much as four, and the growth of its products between tokens; N^2 has
# the linear part of the last stage beside it.
KNOWN = {
    # Without the products by weights that its attention reads from plain layers, with two steps of Newton's iteration.
    "soft_pico": ([(), (), (), ("full",)], [2.14, 2.35, 2.62, 2]),
    "soft_norm_pico_pure": ([(), ()], [None, 2]),
    "rala_pyramid_pico": ([("one row",), ("full",)], [1, 2]),
    "local_pyramid_pico": ([("windows",), ("full",)], [1, 2]),
    "sparse_pyramid_pico": ([("written out",), ("full",)], [None, 2]),
    "efficient_vit_tiny_patch16": ([("rows of fixed length", "64 rows")], [1]),
    # Its largest exponent is found without gradients, which must not hide a part of the graph.
    "performer_vit_tiny_patch16": ([("written out",)], [1]),
    "softmax_vit_tiny_patch16": ([("full",)], [2]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models(name: str) -> None:
    softmax, slopes = KNOWN[name]
    options = {1: {"depth": 1}, 2: TWO_STAGES, 4: {"depths": (1,) * 4}}[len(softmax)]
    if name.startswith("soft_"):
        # A graph has nodes of each iteration.
        options = {**options, "newton_iters": 2}
    ledger = softmax_ledger(name, **options)
    assert [stage.softmax for stage in ledger.stages] == softmax
    for stage, slope in zip(ledger.stages, slopes, strict=True):
        assert slope is None or stage.slope == pytest.approx(slope, abs=0.02)
    assert not ledger.outside
    assert ledger.has_softmax == any(softmax)


def test_growth_is_from_the_own_size() -> None:
    """Windows of 12 x 12 do not fit the maps of smaller images."""
    ledger = softmax_ledger("inline_swin_base_384", depths=(1, 1, 1, 1), linear_blocks=(1, 1, 0, 0))
    assert [stage.softmax for stage in ledger.stages] == [(), (), ("windows",), ("windows",)]
    assert [stage.slope for stage in ledger.stages] == pytest.approx([1] * 4, abs=0.02)


def test_pooling_by_softmax_is_outside_of_stages() -> None:
    assert softmax_ledger("rala_pyramid_pico", attention="mala", global_pool="attn", **TWO_STAGES).outside == (
        "one row",
    )


def test_a_failure_does_not_end_the_others() -> None:
    found, errors = ledgers(["soft_pico_pure", "vgg11_no"], max_bottleneck=(7, 7), depths=(1,) * 4, newton_iters=2)
    assert [ledger.model for ledger in found] == ["soft_pico_pure"]
    assert errors.keys() == {"vgg11_no"}
    # With as many bottleneck tokens at any size, cost is linear.
    assert [round(stage.slope) for stage in found[0].stages[:2]] == [1, 1]


def test_every_group_names_models() -> None:
    for names, _ in model_groups().values():
        assert names
        assert all(map(timm.is_model, names))
