"""Images per second of a test, by a clock of the test's own."""

from types import SimpleNamespace

import pytest
import torch

from soft_vit.engine.hooks import throughput
from soft_vit.engine.hooks.throughput import ThroughputHook


def test_rates_leave_the_first_batch_out(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])

    class Classifier(torch.nn.Linear):
        def forward(self, x: torch.Tensor, mode: str = "tensor") -> torch.Tensor:
            now[0] += 1 if mode == "tensor" else 2
            return self(x) if mode == "predict" else x

    model, hook = Classifier(2, 2), ThroughputHook()
    runner = SimpleNamespace(model=model)
    for batches, loop, forward in (((8, 8, 4), 12 / 8, 12 / 2), ((5,), 5 / 4, 5 / 1)):
        hook.before_test_epoch(runner)
        for count in batches:
            now[0] += 1
            model(torch.zeros(count, 2), mode="predict")
            hook.after_test_iter(runner, 0, outputs=[None] * count)
        metrics = {}
        hook.after_test_epoch(runner, metrics)
        assert metrics == pytest.approx({"images_per_second/loop": loop, "images_per_second/forward": forward})
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
