"""The cost of a backbone per token: constant with a bound on the bottleneck tokens, and not without."""

from captured_models import TWO_STAGES

from benchmarks.resolution import FORMS, measure_resolutions, resolution_table

SIZES = [(224, 224), (416, 672)]
# The first stage has the largest maps, and fewer operations are counted faster.
QUICK = {**TWO_STAGES, "out_indices": (0, 1), "inverse": "cholesky"}


def test_a_bound_keeps_memory_linear_and_changes_nothing_at_224():
    memory = measure_resolutions("soft_pico", SIZES, {form: QUICK | by for form, by in FORMS.items()}, rounds=0)
    bounded, released = FORMS
    first, large = (memory[bounded, size] for size in SIZES)
    assert large.memory / large.size <= 1.3 * first.memory / first.size
    # Without it, the first stage holds a kernel with 13 x 21 bottleneck tokens.
    assert memory[released, SIZES[1]].memory > max(large.memory, 4 * large.size * 13 * 21)
    assert memory[released, SIZES[0]].memory == first.memory


def test_steps_expected_to_take_too_long_are_left_out():
    found = measure_resolutions("soft_pico", [(64, 64), (96, 64)], {"a": QUICK}, rounds=3, max_seconds=0)
    assert [(len(t.seconds), t.size) for t in found.values()] == [(3, 256), (0, 384)]
    *_, first, second = resolution_table(found).splitlines()
    assert "not measured" in second
    assert "not measured" not in first
