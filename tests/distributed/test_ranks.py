"""Parts of a run in several processes over gloo, forked from the test."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from distributed.processes import call_in_ranks
from engine.runs import DEMO
from mmengine.logging import MessageHub
from torch import nn

from soft_vit.engine import SafeCheckpointHook, SafeOptimWrapper, resolve
from soft_vit.layers.attention.vq import VQAttention


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, MMEngine wraps the model")
@pytest.mark.parametrize("own", [{}, {"model_wrapper_cfg.broadcast_buffers": True}])
def test_options_of_ddp_on_cpus_are_mmengines(own, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    wrapper = resolve(DEMO, {"find_unused_parameters": True, **own}, launcher="pytorch").model_wrapper_cfg
    expected = {"broadcast_buffers": bool(own), "find_unused_parameters": True, "device_ids": None}
    assert wrapper == {"type": "MMDistributedDataParallel", **expected}


def small(attention: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    sizes = dict(depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), img_size=32, num_classes=10)
    model = timm.create_model("soft_pico", attention=attention, **sizes).double().train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
        if isinstance(module, VQAttention):
            # Codes with keys; codes without any are reset to random keys of the batch.
            module.key_count.fill_(3)
            module.key_sum.copy_(3 * module.codebook)
    return model


def gradients_and_buffers(model: nn.Module, rank: int, count: int, counts: int, folder: Path) -> list[dict]:
    """What each of four steps on a rank's part of six images leaves; every rank has a seed of its own."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optim = SafeOptimWrapper(sgd, accumulative_counts=counts, clip_grad={"max_norm": 1})
    runner = SimpleNamespace(model=model, hooks=[], work_dir=str(folder), _resume=False, optim_wrapper=optim)
    runner.message_hub, runner.logger = MessageHub.get_instance("ranks"), logging.getLogger()
    SafeCheckpointHook(interval=1).before_train(runner)
    found, drawn = [], torch.Generator().manual_seed(5)
    for _ in range(4):
        images = torch.randn(6, 3, 32, 32, generator=drawn, dtype=torch.float64)[rank::count]
        labels = torch.randint(10, (6,), generator=drawn)[rank::count]
        with optim.optim_context(model):
            loss = nn.functional.cross_entropy(model(images), labels)
        optim.backward(optim.scale_loss(loss))
        if optim.should_update():
            network = getattr(model, "module", model)
            found.append({name: p.grad.clone() for name, p in network.named_parameters()})
            # Not what a rank draws, which no checkpoint has.
            saved = network.state_dict()
            found.append({name: buffer.clone() for name, buffer in network.named_buffers() if name in saved})
            optim.step()
            optim.zero_grad()
    return found


def of_a_rank(rank: int, attention: str, count: int, counts: int, folder: Path) -> list[dict]:
    model = nn.parallel.DistributedDataParallel(small(attention, seed=rank), broadcast_buffers=False)
    return gradients_and_buffers(model, rank, count, counts, folder)


TRAINED = [("vq", 3, 2)]
TRAINED += [pytest.param(*case, marks=pytest.mark.slow) for case in (("soft_norm", 3, 2), ("performer", 2, 1))]


@pytest.mark.parametrize(("attention", "count", "counts"), TRAINED)
def test_steps_are_those_of_one_process(attention, count, counts, tmp_path):
    """Gradients, random features and codes, with as many images in each step."""
    alone = gradients_and_buffers(small(attention, seed=0), 0, 1, counts, tmp_path)
    ranks = call_in_ranks(count, tmp_path, of_a_rank, attention, count, counts, tmp_path)
    assert len(alone) == 8 // counts
    for rank in ranks:
        for expected, given in zip(alone, rank, strict=True):
            for name, value in expected.items():
                bound = 1e-11 * value.abs().max().item() if value.is_floating_point() else 0
                torch.testing.assert_close(given[name], value, rtol=0, atol=bound, msg=name)
