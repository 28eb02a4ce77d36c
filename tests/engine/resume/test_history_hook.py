"""A history that does not grow with the run."""

from types import SimpleNamespace

import pytest
from mmengine.logging import MessageHub

from soft_vit.engine.resume.history_hook import ShortHistoryHook


def test_last_values_stay():
    hub = MessageHub("test_last_values_stay")
    hook = ShortHistoryHook(length=20)
    runner = SimpleNamespace(message_hub=hub, iter=0)
    hub.update_scalar("train/resumed", 1.0)
    hook.before_train(runner)
    for runner.iter in range(1100):
        hub.update_scalar("train/loss", float(runner.iter))
        hook.after_train_iter(runner, 0)
    history = hub.get_scalar("train/loss")
    assert list(history.data[0]) == list(range(1080, 1100))
    assert len(history.data[1]) == 20
    assert history.mean(10) == pytest.approx(1094.5)
    assert history.current() == 1099
    assert hub.get_scalar("train/resumed").max_length == 20
