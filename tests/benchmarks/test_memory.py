"""Counting the bytes of live tensors."""

from functools import partial

import pytest
import timm
import torch
from captured_models import TWO_STAGES

from benchmarks.memory import peak_memory, training_memory
from benchmarks.savings import measure_savings


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_peak_by_hand(device):
    def work():
        a = torch.zeros(1000, device=device)
        b = a + 1  # 8,000 bytes live
        del a
        c = b * 2  # 8,000 again
        d = torch.cat([b, c])  # 16,000
        del b, c
        return d.view(2, 1000)[0]  # a view holds no bytes of its own

    assert peak_memory(work, device) == 16_000


@pytest.mark.parametrize(
    "look", [lambda x: x.mT, lambda x: x.flatten(), lambda x: x[0], lambda x: x.detach(), torch.relu_]
)
def test_tensors_from_before_are_not_counted(look):
    x = torch.zeros(8, 125)
    assert peak_memory(lambda: look(x), "cpu") == 0
    assert peak_memory(lambda: look(x) + 1, "cpu") == look(x).nbytes


@pytest.mark.parametrize("name", ["soft_norm_pico", "linformer_pyramid_pico"])
def test_shapes_alone_hold_what_a_step_holds(name):
    shape = (2, 3, 64, 96)
    options = {"img_size": shape[2:], **TWO_STAGES, **({"newton_iters": 2} if name.startswith("soft") else {})}
    model = timm.create_model(name, **options)
    x = torch.randn(shape)
    measured = peak_memory(lambda: model(x).sum().backward(), "cpu")
    counted = training_memory(partial(timm.create_model, name, **options), shape, "cpu")
    # Gradients of weights are held in both; sums and counters of BatchNorm are not counted alike.
    assert counted == pytest.approx(measured, rel=1e-3)


@pytest.mark.slow
def test_each_saving_saves():
    peaks = measure_savings("soft_pico", (2, 3, 96, 64), **TWO_STAGES, newton_iters=2)
    plain = peaks.pop("plain")
    assert all(peak < plain for peak in peaks.values())
