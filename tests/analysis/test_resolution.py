"""The cost of a backbone a token: linear with a bound on the bottleneck tokens, and not without."""

import pytest
import timm
import torch

from soft_vit.analysis.resolution import FORMS, Cost, measure_resolutions, resolution_table, slopes_table

SIZES = [(224, 224), (448, 448), (800, 1333), (1792, 1792)]


@pytest.fixture(scope="module")
def memory():
    costs = [
        cost
        for form, sizes in zip(FORMS, (SIZES, SIZES[:3]), strict=True)
        for cost in measure_resolutions("soft_tiny", sizes, {form: FORMS[form]}, rounds=0, progress=False)
    ]
    return {(cost.form, cost.size): cost for cost in costs}


def test_a_bound_keeps_memory_linear(memory):
    bounded, released = FORMS
    first, detection, large = (memory[bounded, size] for size in (SIZES[0], SIZES[2], SIZES[3]))
    assert detection.memory / detection.tokens <= 1.3 * first.memory / first.tokens
    assert large.memory / large.tokens <= 1.3 * first.memory / first.tokens
    # Without it, in the first stage, a kernel of one head with its 25 x 41 bottleneck tokens; the bounded peak may lie
    # in another stage.
    kernel = 4 * detection.tokens * 25 * 41
    assert memory[released, detection.size].memory > detection.memory + kernel / 2


def test_a_bound_changes_nothing_at_224(memory):
    assert len({memory[form, SIZES[0]].memory for form in FORMS}) == 1


def test_tables(memory):
    small = measure_resolutions("soft_pico", [(64, 64), (96, 64)], rounds=2, progress=False)
    assert [len(cost.seconds) for cost in small] == [2, 2, 2, 2]
    assert [cost.tokens for cost in small] == [256, 384, 256, 384]
    assert resolution_table(small).count("\n") == 5
    table = slopes_table([Cost("a", (16, 16 * n), 100 * n**2, [3.0 * n] * 2) for n in (1, 2, 4)])
    assert table.splitlines()[-1] == "| a | 2.00 | 1.00 |"
    assert "not measured" in slopes_table(list(memory.values()))
    assert resolution_table(list(memory.values())).count("not measured") == 7


def test_steps_expected_to_last_too_long_are_left_out():
    costs = measure_resolutions("soft_pico", [(64, 64), (64, 96), (64, 128)], {"plain": {}}, rounds=2, max_seconds=0)
    assert [len(cost.seconds) for cost in costs] == [2, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"), [({"rounds": 1}, "rounds is 1"), ({"device": "gpu"}, "no device 'gpu'")]
)
def test_bad_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        measure_resolutions("soft_pico", [(64, 64)], **change)


@pytest.mark.parametrize("size", [(64, 1536), (1536, 64), (65, 129), (193, 1001), (333, 500)])
@pytest.mark.parametrize("name", ["soft_pico", "soft_norm_pico"])
def test_images_of_any_ratio(name, size):
    model = timm.create_model(name, features_only=True, max_bottleneck=(7, 7)).eval()
    with torch.inference_mode():
        maps = model(torch.randn(1, 3, *size))
    assert [tuple(m.shape[2:]) for m in maps] == [
        tuple(-(-side // stride) for side in size) for stride in (4, 8, 16, 32)
    ]
    assert all(m.isfinite().all() and m.is_contiguous() for m in maps)
