"""Models as their exported graphs compute, without capturing one: in a tenth of the time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from soft_vit.export.formats import core_decompositions

Note = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
decompositions = cache(core_decompositions)


class Decomposed(TorchDispatchMode):
    """Decompose operators as `core_aten` does, and call note with those that are left.

    note takes the operator, its arguments and its result.
    """

    def __init__(self, note: Note) -> None:
        super().__init__()
        self.note = note

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if operator.namespace == "prim":
            return operator(*args, **kwargs)
        known = [decompositions()[operator]] if operator in decompositions() else []
        with self:
            for decompose in (*known, *([] if torch.Tag.core in operator.tags else [operator.decompose])):
                result = decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
        result = operator(*args, **kwargs)
        self.note(operator, args, kwargs, result)
        return result


@contextmanager
def exported(note: Note) -> Iterator[None]:
    """Return a context in which modules compute as they are exported, and note is called with every operator."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for name in ("is_compiling", "is_exporting"):
            patch.setattr(torch.compiler, name, lambda: True)
        with Decomposed(note):
            yield
