"""Forward passes of models whose tensors are on a GPU, without one: fake tensors have a device and no values."""

import pytest
import timm
import torch
from models.zoo.families import SAME_BODY, SMALL
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from soft_vit.layers import ATTENTIONS
from soft_vit.models.vit import vit_name

GPU = torch.device("cuda:0")
NAMES = [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("soft_vit.")]
ONE_BLOCK = dict(depth=1, img_size=64, embed_dim=32, num_heads=2)
# Named pyramids and families are checked in training, one block of each type in evaluation, and the rest if slow.
TRAINED: dict[str, tuple[str, dict]] = {
    **{name: (name, {}) for name in ("soft_pico", "soft_norm_pico", "soft_plus_pico")},
    **{family: (name, {"img_size": 64, **small}) for family, (name, small) in SMALL.items() if family not in SAME_BODY},
}
EVALUATED = {kind: (vit_name(kind, "tiny"), ONE_BLOCK) for kind in ATTENTIONS}


class Transfers(TorchDispatchMode):
    """Keep each operator that copies a tensor from one device to another, and so may wait for the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and args and isinstance(args[0], Tensor) and args[0].device != out.device:
            self.found.append(f"{func} of {list(args[0].shape)} from {args[0].device} to {out.device}")
        return out


def put_on_gpu(model: nn.Module) -> None:
    def fake(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=GPU)

    for module in model.modules():
        module._parameters.update({k: nn.Parameter(fake(p)) for k, p in module._parameters.items() if p is not None})
        module._buffers.update({k: fake(b) for k, b in module._buffers.items() if b is not None})


def check_forward(name: str, training: bool, **options) -> None:
    # Built outside of the mode, as some constructors read values.
    model = timm.create_model(name, **options).train(training)
    side = options.get("img_size") or model.pretrained_cfg["input_size"][-1]
    with FakeTensorMode():
        put_on_gpu(model)
        x = torch.empty(2, 3, side, side, device=GPU)
        # A mismatch of devices and a value that Python reads, which waits for the GPU, are errors of the mode.
        with Transfers() as transfers, torch.set_grad_enabled(training):
            out = model(x)
    assert all(part.device == GPU for part in (out if isinstance(out, tuple | list) else (out,)))
    assert not transfers.found


@pytest.mark.parametrize(("name", "options"), TRAINED.values(), ids=TRAINED.keys())
def test_training_stays_on_its_device(name, options):
    check_forward(name, True, **options)


@pytest.mark.parametrize(("name", "options"), EVALUATED.values(), ids=EVALUATED.keys())
def test_evaluation_stays_on_its_device(name, options):
    check_forward(name, False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_forward_of_every_model_stays_on_its_device(name):
    for training in (False, True):
        check_forward(name, training)


def test_what_leaves_the_device_is_found():
    class Wrong(nn.Identity):
        def forward(self, x):
            return x.cpu()

    with FakeTensorMode(), Transfers() as transfers:
        Wrong()(torch.empty(3, device=GPU))
    assert len(transfers.found) == 1
