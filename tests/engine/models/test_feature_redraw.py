"""When features of Performer change, and that all ranks draw alike; test_linearise.py resumes a run with them."""

import itertools
from types import SimpleNamespace

import torch
from torch import nn

from soft_vit.engine import FeatureRedrawHook
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
