"""The operators of an exported graph, found without capturing one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

# What torch.export leaves out or replaces, as it replaces operators that write to their argument.
REPLACED = ("alias", "copy", "lift_fresh")


def rare(operator: Any, kwargs: dict[str, Any]) -> str:
    """Return what few runtimes translate; empty for a Core ATen operator whose terms have no factors."""
    name = str(operator).replace("_.", ".")
    _, packet, overload = name.split(".")
    if packet in REPLACED:
        return ""
    if torch.Tag.core not in getattr(getattr(torch.ops.aten, packet), overload).tags:
        return name
    return ", ".join(f"{name} {factor}" for factor in ("alpha", "beta") if kwargs.get(factor, 1) != 1)


class RareOperators(TorchDispatchMode):
    """Decompose operators as `ExportedProgram.run_decompositions` does, and note those that are `rare`."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.export.default_decompositions()
        self.found: set[str] = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace != "prim":
            with self:
                for decompose in (*([self.table[operator]] if operator in self.table else []), operator.decompose):
                    result = decompose(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
            self.found.add(rare(operator, kwargs))
        return operator(*args, **kwargs)


def rare_operators(run: Callable[..., Any], *shapes: tuple[int, ...]) -> set[str]:
    """Return the rare operators of run as it is exported, for tensors of these shapes."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        for name in ("is_compiling", "is_exporting"):
            patch.setattr(torch.compiler, name, lambda: True)
        tensors = [torch.zeros(shape) for shape in shapes]
        with RareOperators() as mode:
            run(*tensors)
        return mode.found - {""}
