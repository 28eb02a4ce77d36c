"""Performer's features: when they change, that all draw alike, and that a resumed run draws what a whole one does."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from soft_vit.engine import FeatureRedrawHook, train
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.layers.attention.performer import PerformerAttention

DEMO = Path(__file__).parents[3] / "configs" / "demo" / "soft_pico_shapes.py"
# Epochs of 3 batches; the features change before the fourth, which is the first of the second epoch.
OPTIONS = {
    "model.model_name": "performer_pyramid_pico",
    "model.depths": [1, 1, 1, 1],
    "image_size": 32,
    "train_dataloader.dataset.length": 6,
    "train_dataloader.batch_size": 2,
    "val_dataloader.dataset.length": 2,
    "train_cfg.max_epochs": 2,
    "custom_hooks": [{"type": "FeatureRedrawHook", "feature_redraw_interval": 3}],
}


def runner_of(model: nn.Module, rank: int = 0, seed: int = 7) -> SimpleNamespace:
    """MMEngine adds the rank to the seed that all ranks share."""
    return SimpleNamespace(
        model=model, iter=0, seed=seed + rank, rank=rank, _randomness_cfg={"seed": seed, "diff_rank_seed": True}
    )


def features(rank: int = 0, seed: int = 7, frozen: bool = False) -> list[torch.Tensor]:
    """The features that each of five iterations works with."""
    torch.manual_seed(0)
    model = nn.ModuleList(PerformerAttention(8, 1, feat_size=(2, 2)) for _ in range(2))
    model.train(not frozen)
    runner = runner_of(model, rank, seed)
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
    assert not torch.equal(found[-1], features(seed=8)[-1])


def test_what_does_not_train_keeps_its_features():
    first, *others = features(frozen=True)
    assert all(torch.equal(first, other) for other in others)


def test_mistakes():
    with pytest.raises(ValueError, match="feature_redraw_interval is 0"):
        FeatureRedrawHook(0)
    with pytest.raises(ValueError, match="no Performer attention"):
        FeatureRedrawHook().before_train(runner_of(nn.Linear(2, 2)))


def test_resumed_run_draws_what_a_whole_one_does(tmp_path):
    train(DEMO, work_dir=tmp_path / "whole", options=OPTIONS)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole" / "epoch_1.pth", tmp_path / "resumed")
    train(DEMO, work_dir=tmp_path / "resumed", resume="auto", options=OPTIONS)
    first, whole, resumed = (
        load_checkpoint_file(tmp_path / path)["state_dict"]
        for path in ("whole/epoch_1.pth", "whole/epoch_2.pth", "resumed/epoch_2.pth")
    )
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    projections = [name for name in whole if name.endswith("projection")]
    assert len(projections) == 3
    assert not any(torch.equal(first[name], whole[name]) for name in projections)
