"""Performer's features: when they change, that all draw alike, and that a resumed run draws what a whole one does."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from engine.runs import DEMO, assert_same_state, tiny, weights
from torch import nn

from soft_vit.engine import FeatureRedrawHook, train
from soft_vit.layers.attention.performer import PerformerAttention


def runner_of(model: nn.Module, rank: int = 0) -> SimpleNamespace:
    """MMEngine adds the rank to the seed that all ranks share."""
    randomness = {"seed": 7, "diff_rank_seed": True}
    return SimpleNamespace(model=model, iter=0, seed=7 + rank, rank=rank, _randomness_cfg=randomness)


def features(rank: int = 0, frozen: bool = False) -> list[torch.Tensor]:
    """The features that each of five iterations works with."""
    torch.manual_seed(0)
    model = nn.ModuleList(PerformerAttention(8, 1, feat_size=(2, 2)) for _ in range(2))
    model.train(not frozen)
    runner = runner_of(model, rank)
    hook = FeatureRedrawHook(2)
    hook.before_train(runner)
    found = []
    for runner.iter in range(5):
        state = torch.get_rng_state()
        hook.before_train_iter(runner, runner.iter)
        assert torch.equal(torch.get_rng_state(), state)
        found.append(torch.stack([attn.projection for attn in model]))
    return found


def test_features_change_each_n_iterations_and_alike_on_all_ranks():
    found = features()
    assert [torch.equal(*pair) for pair in itertools.pairwise(found)] == [True, False, True, False]
    assert not torch.equal(*found[-1])
    assert all(torch.equal(*pair) for pair in zip(found, features(rank=1), strict=True))


def test_what_does_not_train_keeps_its_features():
    first, *others = features(frozen=True)
    assert all(torch.equal(first, other) for other in others)


def test_model_without_performer_attention():
    with pytest.raises(ValueError, match="Performer"):
        FeatureRedrawHook().before_train(runner_of(nn.Linear(2, 2)))


def test_resumed_run_draws_what_a_whole_one_does(tmp_path):
    """Epochs of 3 batches; the features change before the fourth, the first of the second epoch."""
    options = tiny(images=6, batch=2, epochs=2) | {
        "model.model_name": "performer_pyramid_pico",
        "custom_hooks": [{"type": "FeatureRedrawHook", "feature_redraw_interval": 3}],
    }
    train(DEMO, work_dir=tmp_path / "whole", options=options)
    first, last = (tmp_path / "whole" / f"epoch_{n}.pth" for n in (1, 2))
    train(DEMO, work_dir=tmp_path / "resumed", resume=str(first), options=options)
    assert_same_state(last, tmp_path / "resumed" / "epoch_2.pth")
    before, after = weights(first), weights(last)
    assert not any(torch.equal(before[name], after[name]) for name in after if name.endswith("projection"))
