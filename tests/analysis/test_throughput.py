"""The benchmark's bookkeeping; no test looks at how fast anything is."""

import pytest
import torch

from soft_vit.analysis.throughput import Timing, create_variant, measure_throughput, throughput_table


def test_every_model_is_timed_in_every_mode():
    names = ["soft_pico", "soft_norm_pico"]
    timings = measure_throughput(names, batch_size=2, img_size=(32, 48), rounds=3, progress=False)
    assert [(t.mode, t.model) for t in timings] == [(m, n) for m in ("inference", "training") for n in names]
    assert all(0 < t.lower <= t.median <= t.upper for t in timings)


def test_ratios_are_against_the_first_model_of_the_mode():
    rows = [Timing("a", "inference", 10, 9, 11), Timing("b", "inference", 15, 14, 16), Timing("a", "training", 4, 3, 5)]
    table = throughput_table(rows).splitlines()
    assert [line.split("|")[-2].strip() for line in table[2:]] == ["1.00", "1.50", "1.00"]


def test_variants_of_a_model():
    names = ["soft_pico", "soft_pico+naive", "soft_pico+folded"]
    timings = measure_throughput(names, batch_size=2, img_size=32, rounds=3, memory=True, progress=False)
    # A folded model has no gradients.
    assert [t.model for t in timings] == names + names[:2]
    plain, naive, _, training, _ = (t.memory_mb for t in timings)
    assert 0 < min(plain, naive) <= max(plain, naive) < training
    assert throughput_table(timings).splitlines()[0].split("|")[-2].strip() == "memory (MB)"


@pytest.mark.parametrize("name", ["soft_pico", "resnet10t"])
def test_checkpointing_stores_fewer_activations(name):
    stored = {}
    for variant in (name, f"{name}+checkpointed"):
        model, sizes = create_variant(variant).train(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, to=sizes: to.append(t.numel()) or t, lambda t: t):
            model(torch.randn(2, 3, 64, 64))
        stored[variant] = sum(sizes)
    assert stored[f"{name}+checkpointed"] < stored[name]


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("soft_pico", {"modes": ["flight"]}, "flight"),
        ("soft_pico", {"rounds": 2}, "rounds=2"),
        ("soft_pic", {}, "There is no model soft_pic"),
        ("soft_pico+fast", {}, "no variant fast; after a . stand naive"),
        ("softmax_pyramid_pico+naive", {}, "no softmax-free attention"),
    ],
)
def test_bad_arguments(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure_throughput([name], progress=False, **kwargs)
