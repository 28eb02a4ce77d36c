"""The cost of a backbone per token: constant with a bound on the bottleneck tokens, and not without."""

import pytest
from captured_models import TWO_STAGES

from benchmarks.resolution import FORMS, measure_resolutions

SIZES = [(224, 224), (416, 672)]
# The first stage has the largest maps, and fewer operations are counted faster.
QUICK = {**TWO_STAGES, "out_indices": (0, 1), "inverse": "cholesky"}


@pytest.mark.slow
def test_a_bound_keeps_memory_linear_and_changes_nothing_at_224():
    memory = measure_resolutions("soft_pico", SIZES, {form: QUICK | by for form, by in FORMS.items()}, rounds=0)
    bounded, released = FORMS
    first, large = (memory[bounded, size] for size in SIZES)
    assert large.memory / large.size <= 1.3 * first.memory / first.size
    # Without it, the first stage holds a kernel with 13 x 21 bottleneck tokens.
    assert memory[released, SIZES[1]].memory > max(large.memory, 4 * large.size * 13 * 21)
    assert memory[released, SIZES[0]].memory == first.memory
