"""A small model and its training, without MMEngine, in this process or in several."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import timm
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.registry import with_attributes

PER_RANK = 4


def small_model(device: str, drop_path_rate: float = 0.0, backend: str | None = None) -> nn.Module:
    """A shallow soft_pico for 10 classes of images of 64 x 64, the same in every call."""
    torch.manual_seed(0)
    sizes = dict(num_classes=10, img_size=64, depths=[1, 1, 1, 1])
    model = timm.create_model("soft_pico", drop_path_rate=drop_path_rate, **sizes)
    return with_attributes(model, backend=backend).to(device)


def batch(seed: int, size: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, 64, 64, generator=generator)
    return images.to(device), torch.randint(10, (size,), generator=generator).to(device)


def gradients(
    model: nn.Module, images: Tensor, labels: Tensor, context: AbstractContextManager | None = None
) -> dict[str, Tensor]:
    """The loss, and the gradients of parameters by name, in float64; context: of the forward."""
    model.zero_grad()
    with context or nullcontext():
        loss = cross_entropy(model(images), labels)
    loss.backward()
    found = {name: parameter.grad.double().cpu() for name, parameter in model.named_parameters()}
    return {"loss": loss.detach().double().cpu(), **found}


def distance(actual: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """The relative error of all tensors together."""
    assert actual.keys() == exact.keys()
    differences, sizes = ([x.norm() for x in xs] for xs in ((actual[n] - exact[n] for n in exact), exact.values()))
    return float(torch.stack(differences).norm() / torch.stack(sizes).norm())


def fix_norms(model: nn.Module) -> nn.Module:
    """Leave BatchNorm's statistics as they are, so that images of a batch do not depend on each other."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def run_rank(rank: int, world_size: int, device: str, folder: Path) -> None:
    """The gradients of one rank of data-parallel training, to folder/RANK; device: cpu, or cuda for one GPU a rank."""
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    torch.backends.cudnn.allow_tf32 = False
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=world_size)
    model = DistributedDataParallel(fix_norms(small_model(device)), device_ids=[rank] if on_gpu else None)
    images, labels = batch(0, PER_RANK * world_size, device)
    mine = slice(PER_RANK * rank, PER_RANK * (rank + 1))
    found = gradients(model, images[mine], labels[mine])
    torch.save({name.removeprefix("module."): value for name, value in found.items()}, folder / str(rank))
    dist.destroy_process_group()
