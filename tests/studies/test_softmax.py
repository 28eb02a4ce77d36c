"""Models for which it is known where softmax is, what it normalises, and how the cost of attention grows."""

import pytest
import timm
from captured_models import TWO_STAGES

from studies.calls import Rows, kind_of_softmax
from studies.softmax import measure_model, measure_models, model_groups


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


# What softmax normalises in each stage, and the exponents of growth, None where there are no products between tokens.
# Two stages show as much as four.
KNOWN = {
    # With two steps of Newton's iteration. Products with weights do not count.
    "soft_pico": ([(), ("full",)], [2.14, 2]),
    "soft_norm_pico_pure": ([(), ()], [None, 2]),
    "rala_pyramid_pico": ([("one row",), ("full",)], [1, 2]),
    "local_pyramid_pico": ([("windows",), ("full",)], [1, 2]),
    "sparse_pyramid_pico": ([("written out",), ("full",)], [None, 2]),
    "efficient_vit_tiny_patch16": ([("rows of fixed length", "64 rows")], [1]),
    "performer_vit_tiny_patch16": ([("written out",)], [1]),
    "softmax_vit_tiny_patch16": ([("full",)], [2]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models(name: str) -> None:
    softmax, slopes = KNOWN[name]
    options = {"depth": 1} if len(softmax) == 1 else TWO_STAGES
    if name.startswith("soft_"):
        options = {**options, "newton_iters": 2}
    row = measure_model(name, **options)
    assert [stage.softmax for stage in row.stages] == softmax
    for stage, slope in zip(row.stages, slopes, strict=True):
        assert slope is None or stage.slope == pytest.approx(slope, abs=0.02)
    assert not row.outside
    assert row.has_softmax == any(softmax)


def test_growth_is_from_the_own_size() -> None:
    """Windows of 12 x 12 do not divide the maps of smaller images."""
    row = measure_model("inline_swin_base_384", depths=(1, 1, 1, 1), linear_blocks=(1, 1, 0, 0))
    assert [stage.softmax for stage in row.stages] == [(), (), ("windows",), ("windows",)]
    assert [stage.slope for stage in row.stages] == pytest.approx([1] * 4, abs=0.02)


def test_pooling_by_softmax_is_outside_of_stages() -> None:
    assert measure_model("rala_pyramid_pico", attention="mala", global_pool="attn", **TWO_STAGES).outside == (
        "one row",
    )


def test_a_failure_does_not_end_the_others() -> None:
    found, errors = measure_models(["soft_pico_pure", "vgg11_no"], max_bottleneck=(7, 7), newton_iters=2, **TWO_STAGES)
    assert [row.model for row in found] == ["soft_pico_pure"]
    assert errors.keys() == {"vgg11_no"}
    # With a fixed number of bottleneck tokens, the cost is linear.
    assert round(found[0].stages[0].slope) == 1


def test_every_group_names_models() -> None:
    for names, _ in model_groups().values():
        assert names
        assert all(map(timm.is_model, names))
