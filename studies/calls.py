"""What the forward of a model calls: each softmax with its stage, and products of two activations."""

import math
import re
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from soft_vit.models.eval_mode import eval_mode
from soft_vit.ops.flops import flop_counter

# Products with a weight of the model; others are of two activations, unless a factor is a parameter.
WEIGHT_PRODUCTS = {"convolution", "addmm", "mm"}
# Meta tensors compute the shapes of these in Python, at length.
ELEMENTWISE = {"add", "div", "gelu", "hardswish", "mul", "relu", "sigmoid", "silu", "sub"}
NORMS = {"_native_batch_norm_legit_no_training", "native_batch_norm", "native_layer_norm"}
# What comes after all stages, and all of a model without stages.
HEAD, WHOLE = "head", "model"

# What a softmax normalises, from most to least of the tokens.
FULL, WINDOWS, FIXED, ROWS = "full", "windows", "rows of fixed length", "one row"


class Rows(NamedTuple):
    """The shape of a softmax: the number of sets of rows, the number of rows in a set, the length of a row."""

    sets: int
    rows: int
    length: int


def kind_of_softmax(small: Rows, large: Rows) -> str:
    """Return what a softmax normalises, from its rows for an image and for a larger one."""
    if large.length == small.length:
        return FIXED if large.sets == small.sets else WINDOWS
    if large.rows == small.rows:
        return ROWS if small.rows == 1 else f"{small.rows} rows"
    return FULL


def _rows_of(function: str, *args: Any) -> Rows:
    """Return the rows of a call: softmax of a tensor over an axis, or fused attention of queries and keys."""
    shape = list(args[0].shape)
    if "softmax" not in function:
        return Rows(math.prod(shape[:-2]), shape[-2], args[1].shape[-2])
    length = shape.pop(args[1])
    return Rows(math.prod(shape[:-1]), shape[-1] if shape else 1, length)


class Calls(TorchDispatchMode):
    """Records what a model calls within this context.

    stages: the names of the stages, numbered from 1 by their resolution. A stage ends with its last module of
    `feature_info`; `HEAD` follows the last, and a model without stages is `WHOLE`. softmax: the rows of each, with its
    stage, also inside fused attention. written_out: the stages with exponentials of differences to a maximum, as in
    softmax that is computed in several steps. flops: of all products, two for a multiply-add; products: those of two
    activations, by stage. Raises RuntimeError for an operation that is not torch's own, as it may hide a softmax.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.softmax: list[tuple[str, Rows]] = []
        self.written_out: set[str] = set()
        self.flops = 0
        self.products: Counter[str] = Counter()
        self._formulas = flop_counter().flop_registry
        self._weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        # Maxima, and differences to them. Their ids are theirs as long as they are kept.
        self._maxima: dict[int, Tensor] = {}
        self._differences: dict[int, Tensor] = {}
        ends = {info["module"]: info["reduction"] for info in getattr(model, "feature_info", None) or ()}
        modules = dict(model.named_modules())
        self._ends = [(_called(modules[name]), reduction) for name, reduction in ends.items() if name in modules]
        self._reductions = sorted({reduction for _, reduction in self._ends})
        self._ended = 0
        self.stages = [str(1 + number) for number in range(len(self._reductions))] or [WHOLE]

    def __enter__(self) -> "Calls":
        self._hooks = [module.register_forward_hook(self._end) for module, _ in self._ends]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _end(self, *_: Any) -> None:
        self._ended += 1

    @property
    def stage(self) -> str:
        """The stage that is running."""
        if self._ended >= len(self._ends):
            return HEAD if self._ends else WHOLE
        return self.stages[self._reductions.index(self._ends[self._ended][1])]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, tensors = func.overloadpacket.__name__, [arg for arg in args if isinstance(arg, Tensor)]
        if func.namespace not in ("aten", "prim", "prims"):
            raise RuntimeError(f"{func} may hide a softmax.")
        alike = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
        if name in ELEMENTWISE and alike and tensors[0].is_floating_point():
            out = torch.empty_like(tensors[0])
        elif name in NORMS:
            out = torch.empty_like(args[0]), *[args[0].new_empty(0)] * 2
        else:
            out = func(*args, **(kwargs or {}))
        is_attention = "dot_product_attention" in name
        if is_attention or "softmax" in name:
            self.softmax.append((self.stage, _rows_of(name, *args)))
        if formula := self._formulas.get(func.overloadpacket):
            flops = formula(*args, **(kwargs or {}), out_val=out)
            self.flops += flops
            with_weight = bool({tensor.untyped_storage()._cdata for tensor in tensors} & self._weights)
            if is_attention or not (with_weight or name in WEIGHT_PRODUCTS):
                self.products[self.stage] += flops
        self._follow_maxima(name, tensors, out)
        return out

    def _follow_maxima(self, name: str, tensors: list[Tensor], out: Any) -> None:
        """Note maxima, which may change their shape, differences to them, and exponentials of these."""
        if re.fullmatch("a?max|maximum|logsumexp", name) or (len(tensors) == 1 and id(tensors[0]) in self._maxima):
            self._maxima |= {id(leaf): leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)}
        elif name == "sub" and id(tensors[-1]) in self._maxima:
            self._differences[id(out)] = out
        elif name == "exp" and id(tensors[0]) in self._differences:
            self.written_out.add(self.stage)


def _called(module: nn.Module) -> nn.Module:
    """Return a module, or the last one in a list, which is never called itself."""
    return _called(module[-1]) if isinstance(module, nn.ModuleList) else module


def calls_of(model: nn.Module, size: tuple[int, int, int]) -> Calls:
    """Return what a model on the meta device calls in eval mode for one image of size (channels, height, width)."""
    with eval_mode(model), torch.no_grad(), Calls(model) as calls:
        model(torch.empty(1, *size, device="meta"))
    return calls
