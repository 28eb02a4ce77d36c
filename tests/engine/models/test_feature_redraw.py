"""When features of Performer change, and that all ranks draw alike."""

import itertools
from types import SimpleNamespace

import torch
from torch import nn

from soft_vit.engine import FeatureRedrawHook
from soft_vit.layers.attention.performer import PerformerAttention


def features(rank: int = 0) -> list[torch.Tensor]:
    """The features that each of five iterations works with, of two attentions that train and a frozen one."""
    torch.manual_seed(0)
    model = nn.ModuleList(PerformerAttention(8, 1, feat_size=(2, 2)) for _ in range(3))
    model[2].eval()
    # MMEngine adds the rank to the seed that all ranks share.
    randomness = {"seed": 7, "diff_rank_seed": True}
    runner = SimpleNamespace(model=model, iter=0, seed=7 + rank, rank=rank, _randomness_cfg=randomness)
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
    for attention, stays in enumerate(([True, False, True, False], [True, False, True, False], [True] * 4)):
        assert [torch.equal(a[attention], b[attention]) for a, b in itertools.pairwise(found)] == stays
    assert not torch.equal(*found[-1][:2])
    torch.testing.assert_close(features(rank=1), found, rtol=0, atol=0)
