"""The cost of a backbone per token: constant with a bound on the bottleneck tokens, and not without."""

import pytest
from captured_models import TWO_STAGES

from benchmarks.resolution import FORMS, measure_resolutions, resolution_table

SIZES = [(224, 224), (416, 672)]
# A block per stage shows what the whole model does, and so does the inverse with fewer operations.
SHALLOW = {"depths": (1, 1, 1, 1), "inverse": "cholesky"}
# For what asks which steps are taken, and not what they cost.
QUICK = {**TWO_STAGES, "out_indices": (0, 1), "inverse": "cholesky"}


@pytest.fixture(scope="module")
def memory():
    forms = {form: options | SHALLOW for form, options in FORMS.items()}
    return measure_resolutions("soft_pico", SIZES, forms, rounds=0)


def test_a_bound_keeps_memory_linear(memory):
    bounded, released = FORMS
    first, large = (memory[bounded, size] for size in SIZES)
    assert large.memory / large.size <= 1.3 * first.memory / first.size
    # Without it, the first stage holds a kernel with 13 x 21 bottleneck tokens; the bounded peak
    # lies in another stage.
    kernels = 4 * large.size * 13 * 21
    assert memory[released, SIZES[1]].memory > max(large.memory, kernels)


def test_a_bound_changes_nothing_at_224(memory):
    assert len({memory[form, SIZES[0]].memory for form in FORMS}) == 1


def test_steps_expected_to_take_too_long_are_left_out():
    found = measure_resolutions("soft_pico", [(64, 64), (96, 64)], {"a": QUICK}, rounds=3, max_seconds=0)
    assert [(len(t.seconds), t.size) for t in found.values()] == [(3, 256), (0, 384)]
    *_, first, second = resolution_table(found).splitlines()
    assert "not measured" in second
    assert "not measured" not in first
