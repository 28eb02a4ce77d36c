"""Images per second of a test, by a clock of the test's own."""

import itertools

import pytest

from soft_vit.engine.hooks import throughput
from soft_vit.engine.hooks.throughput import ThroughputHook


@pytest.mark.parametrize(("batches", "rate"), [((8, 8, 4), 12 / 2), ((5,), 5)])
def test_rate_leaves_the_first_batch_out(batches, rate, monkeypatch):
    monkeypatch.setattr(throughput.time, "perf_counter", itertools.count().__next__)
    hook, metrics = ThroughputHook(), {}
    hook.before_test_epoch(None)
    for count in batches:
        hook.after_test_iter(None, 0, outputs=[None] * count)
    hook.after_test_epoch(None, metrics)
    assert metrics == {"images_per_second": rate}
