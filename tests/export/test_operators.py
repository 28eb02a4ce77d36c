"""What is exported has Core ATen operators alone, which every runtime translates."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import timm
import torch
from attention_cases import CASES, make
from captured_models import CASES as PYRAMIDS
from captured_models import create
from models.zoo.families import SMALL
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

# What formulas need beyond that, as docs/export.md says, by a word of the case.
CHOLESKY = {"aten.linalg_cholesky_ex.default", "aten.cholesky_solve.default"}
NEEDED = {"reformer": {"aten.sort.stable"}, "skyformer": CHOLESKY, "cholesky": CHOLESKY}
NEEDED["efficientvit"] = {"aten.upsample_bicubic2d.default"}
# What torch.export leaves out or replaces, as it replaces operators that write to their argument.
REPLACED = ("alias", "copy", "lift_fresh")

ATTENTION_CASES = [case for case in CASES if "contract" in case.uses or "inverse" in case.options]
ATTENTION_CASES = [case for case in ATTENTION_CASES if case.kind != "nystrom" or "inverse" not in case.options]


def rare(operator: Any, kwargs: dict[str, Any]) -> str:
    """Return what few runtimes translate; empty for a Core ATen operator whose terms have no factors."""
    name = str(operator).replace("_.", ".")
    _, packet, overload = name.split(".")
    if packet in REPLACED:
        return ""
    if torch.Tag.core not in getattr(getattr(torch.ops.aten, packet), overload).tags:
        return name
    return ", ".join(f"{name} {factor}" for factor in ("alpha", "beta") if kwargs.get(factor, 1) != 1)


decompositions = cache(torch.export.default_decompositions)


class RareOperators(TorchDispatchMode):
    """Decompose operators as `ExportedProgram.run_decompositions` does, and note those that are `rare`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace != "prim":
            known = [decompositions()[operator]] if operator in decompositions() else []
            with self:
                for decompose in (*known, *([] if torch.Tag.core in operator.tags else [operator.decompose])):
                    result = decompose(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
            self.found.add(rare(operator, kwargs))
        return operator(*args, **kwargs)


def rare_operators(run: Callable[..., Any], *shapes: tuple[int, ...]) -> set[str]:
    """Return the rare operators of run as it is exported, for tensors of these shapes, in a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        for name in ("is_compiling", "is_exporting"):
            patch.setattr(torch.compiler, name, lambda: True)
        tensors = [torch.zeros(shape) for shape in shapes]
        with RareOperators() as mode:
            run(*tensors)
        return mode.found - {""}


def needed(case: str) -> set[str]:
    return next((operators for word, operators in NEEDED.items() if word in case), set())


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_every_attention(case):
    attention = make(case, (6, 5), dtype=torch.float32)
    assert rare_operators(lambda x: attention(x, (6, 5)), (2, 30, 12)) == needed(str(case))


# Rows whose parts other rows have, too.
SLOW = ("flatten_pvt", "flatten_swin", "pola_pvt", "pola_swin", "h_vit3", "mavit", "inline_pvt", "vig", "vrwkv")
SLOW += ("soft_norm", "cholesky", "capped bottleneck", "random sampling", "fused stages", "reversible")
MODELS = {family: {"model_name": name, **options} for family, (name, options) in SMALL.items()} | PYRAMIDS
MARKED = [pytest.param(family, marks=[pytest.mark.slow] * (family in SLOW)) for family in MODELS]


def small_model(family: str) -> nn.Module:
    options = {"num_classes": 7, "img_size": 64, **MODELS[family]}
    return (create(options) if family in PYRAMIDS else timm.create_model(**options)).eval()


@pytest.mark.parametrize("family", MARKED)
def test_every_family(family):
    assert rare_operators(small_model(family), (2, 3, 64, 64)) == needed(family)
