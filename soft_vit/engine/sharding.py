"""Models whose parameters are shared out over the processes of a run.

`model_wrapper_cfg = dict(type="ShardedDataParallel")` in a config, or `--cfg-options
model_wrapper_cfg.type=ShardedDataParallel`, and nothing else changes: every process keeps a part of each parameter, of
its gradient, its average and the optimizer's state, and fetches a block when it is computed (Zhao et al., "PyTorch
FSDP", arXiv 2304.11277). Checkpoints hold whole tensors, as those of any other run do: a run can go on with another
number of processes and the same global batch, and without sharding.
"""

import copy
from functools import partial
from typing import Any

import torch
from mmengine.dist import broadcast, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.optim import OptimWrapper
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

__all__ = ["ShardedDataParallel", "ShardedRunner"]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """What is fetched at a time: the entries of every list of modules called `blocks`, as timm's transformers have."""
    lists = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "blocks"]
    return [block for blocks in lists for block in blocks.children()]


@MODEL_WRAPPERS.register_module()
class ShardedDataParallel(nn.Module):
    """MMEngine's contract of a model wrapper over torch's fully_shard, one unit for each block of the model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        # MMEngine would do both later, when no process holds the whole any more.
        module.init_weights()
        for value in module.state_dict().values():
            broadcast(value)
        # Not by `to("meta")`, after which MMEngine's data preprocessor would send every batch there.
        skeleton = copy.deepcopy(module)._apply(lambda value: value.to("meta"))
        mesh = init_device_mesh(next(module.parameters()).device.type, (torch.distributed.get_world_size(),))
        self.module = _shard(module, skeleton, mesh)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def train_step(self, data: dict, optim_wrapper: OptimWrapper) -> dict[str, Tensor]:
        with optim_wrapper.optim_context(self):
            losses = self(**self.module.data_preprocessor(data, training=True), mode="loss")
        loss, logged = self.module.parse_losses(losses)
        optim_wrapper.update_params(loss)
        return logged

    def val_step(self, data: dict) -> list:
        return self(**self.module.data_preprocessor(data, training=False), mode="predict")

    test_step = val_step


def _shard(module: nn.Module, skeleton: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a module in place. skeleton: a copy of it from before that holds no values."""
    for unit in [*blocks_of(module), module]:
        # Of the whole as well: averages of weights and checkpoints look at parameters between two forward passes.
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    module.register_load_state_dict_pre_hook(_shard_given)
    # torch does not copy a sharded module, and an average of weights is one.
    module.__deepcopy__ = partial(_copy, module, skeleton, mesh)
    return module


def _copy(module: nn.Module, skeleton: nn.Module, mesh: DeviceMesh, memo: dict) -> nn.Module:
    result = _shard(copy.deepcopy(skeleton, memo), skeleton, mesh).to_empty(device=mesh.device_type)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            owner, _, leaf = name.rpartition(".")
            getattr(result.get_submodule(owner), leaf).copy_(value)
    return result.train(module.training)


def _shard_like(value: Any, parameter: Tensor) -> Any:
    """A whole tensor, the same in all processes, sharded as a parameter of its shape is; anything else as it is."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or isinstance(value, DTensor):
        return value
    if value.shape != parameter.shape:
        return value
    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _shard_given(module: nn.Module, state_dict: dict, prefix: str, *_: Any) -> None:
    """Before a state dict of whole tensors is loaded."""
    for name, parameter in module.named_parameters(prefix=prefix.removesuffix(".")):
        if name in state_dict:
            state_dict[name] = _shard_like(state_dict[name], parameter)


def _whole(value: Any) -> Any:
    """Containers with every sharded tensor made whole, on the CPU; to be called in all processes alike."""
    if isinstance(value, dict):
        return type(value)((key, _whole(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_whole(item) for item in value)
    if not isinstance(value, DTensor):
        return value
    # MMEngine moves the parts to the CPU, where the processes of a GPU run cannot exchange them.
    mesh = value.device_mesh
    part = value.to_local().to(mesh.device_type)
    part = DTensor.from_local(part, mesh, value.placements, shape=value.shape, stride=value.stride())
    return part.full_tensor().cpu()


class _DiscardingBackend(LocalBackend):
    def put(self, obj: bytes, filepath: Any) -> None:
        pass


register_backend("soft_vit.discard", _DiscardingBackend, force=True)


class ShardedRunner(Runner):
    """MMEngine's Runner for a `ShardedDataParallel` model: all processes take part in writing a checkpoint."""

    def _init_model_weights(self) -> None:
        if not isinstance(self.model, ShardedDataParallel):
            super()._init_model_weights()

    def save_checkpoint(self, out_dir: str, filename: str, file_client_args: Any = None, **options: Any) -> None:
        if not is_main_process():
            file_client_args, options["backend_args"] = None, {"backend": "soft_vit.discard"}
        # MMEngine's method, without the decorator that lets the main process alone enter.
        Runner.save_checkpoint.__wrapped__(self, out_dir, filename, file_client_args, **options)

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        super().call_hook(fn_name, **kwargs)
        if fn_name == "before_save_checkpoint":
            checkpoint = kwargs["checkpoint"]
            checkpoint.update(_whole(dict(checkpoint)))
            if not is_main_process():
                checkpoint.clear()

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict:
        checkpoint = super().load_checkpoint(*args, **kwargs)
        if "optimizer" in checkpoint and isinstance(self.optim_wrapper, OptimWrapper):
            groups = self.optim_wrapper.optimizer.param_groups
            parameters = [parameter for group in groups for parameter in group["params"]]
            for index, state in checkpoint["optimizer"]["state"].items():
                for name, value in state.items():
                    state[name] = _shard_like(value, parameters[index])
        return checkpoint
