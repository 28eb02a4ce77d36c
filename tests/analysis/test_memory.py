"""Counting the bytes of live tensors."""

import pytest
import torch

from soft_vit.analysis.memory import LiveTensors, peak_memory


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


def test_freed_memory_is_not_counted():
    with LiveTensors() as watch:
        for _ in range(5):
            torch.zeros(1000)
        assert watch.current == 0
    assert watch.peak == 4000


def test_backward_is_seen():
    x = torch.zeros(1000, requires_grad=True)
    forward = peak_memory(lambda: x.exp(), "cpu")
    assert peak_memory(lambda: x.exp().sum().backward(), "cpu") > forward
