"""The cost of a backbone per token: constant with a bound on the bottleneck tokens, and not without."""

import pytest
import timm
import torch
from captured_models import TWO_STAGES

from benchmarks.resolution import FORMS, Cost, measure_resolutions, resolution_table, slopes_table

SIZES = [(224, 224), (416, 672)]
# A block per stage shows what the whole model does, and so does the inverse with fewer operations.
SHALLOW = {"depths": (1, 1, 1, 1), "inverse": "cholesky"}
# For what asks which steps are taken, and not what they cost.
QUICK = {**TWO_STAGES, "out_indices": (0, 1), "inverse": "cholesky"}


@pytest.fixture(scope="module")
def memory():
    forms = {form: options | SHALLOW for form, options in FORMS.items()}
    costs = measure_resolutions("soft_pico", SIZES, forms, rounds=0)
    return {(cost.form, cost.size): cost for cost in costs}


def test_a_bound_keeps_memory_linear(memory):
    bounded, released = FORMS
    first, large = (memory[bounded, size] for size in SIZES)
    assert large.memory / large.tokens <= 1.3 * first.memory / first.tokens
    # Without it, the first stage holds a kernel with 13 x 21 bottleneck tokens; the bounded peak
    # lies in another stage.
    kernels = 4 * large.tokens * 13 * 21
    assert memory[released, large.size].memory > max(large.memory, kernels)


def test_a_bound_changes_nothing_at_224(memory):
    assert len({memory[form, SIZES[0]].memory for form in FORMS}) == 1


def test_tables(memory):
    small = measure_resolutions("soft_pico", [(64, 64), (96, 64)], {"a": QUICK}, rounds=3)
    assert [len(cost.seconds) for cost in small] == [3, 3]
    assert [cost.tokens for cost in small] == [256, 384]
    assert resolution_table(small).count("\n") == 3
    table = slopes_table([Cost("a", (16, 16 * n), 100 * n**2, [3.0 * n] * 2) for n in (1, 2, 4)])
    assert table.splitlines()[-1] == "| a | 2.00 | 1.00 |"
    assert "not measured" in slopes_table(list(memory.values()))
    assert resolution_table(list(memory.values())).count("not measured") == 4


def test_steps_expected_to_last_too_long_are_left_out():
    costs = measure_resolutions("soft_pico", [(64, 64), (64, 96)], {"a": QUICK}, rounds=3, max_seconds=0)
    assert [len(cost.seconds) for cost in costs] == [3, 0]


@pytest.mark.parametrize(
    ("change", "message"), [({"rounds": 2}, "rounds is 2"), ({"device": "gpu"}, "no device 'gpu'")]
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        measure_resolutions("soft_pico", [(64, 64)], **change)


@pytest.mark.parametrize("size", [(1536, 64), (65, 129), (193, 1001)])
@pytest.mark.parametrize("name", ["soft_pico", "soft_norm_pico"])
def test_images_of_any_ratio(name, size):
    model = timm.create_model(name, features_only=True, max_bottleneck=(7, 7)).eval()
    with torch.inference_mode():
        maps = model(torch.randn(1, 3, *size))
    assert [tuple(m.shape[2:]) for m in maps] == [
        tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)
    ]
    assert all(m.isfinite().all() and m.is_contiguous() for m in maps)
