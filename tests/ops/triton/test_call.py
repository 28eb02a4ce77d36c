"""Which calls take the kernel that is compiled already. No kernel is computed."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from soft_vit.ops.triton.call import call


class Kernel:
    """Stands for a kernel in Triton: notes what is bound, and what a compiled kernel is called with."""

    params = tuple(SimpleNamespace(name=name) for name in ("x", "size", "BLOCK", "PRECISION"))

    def __init__(self, compiles: bool = True):
        self.bound, self.called, self.compiles = [], [], compiles

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.bound.append((grid, arguments, options))
            return Compiled(self) if self.compiles else None

        return launch


class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.called.append((grid, arguments))


def test_binds_once_for_each_kind_of_call():
    kernel, x, options = Kernel(), torch.zeros(64), dict(num_warps=4, PRECISION="ieee", BLOCK=16)
    for _ in range(2):
        call(kernel, (3, 1, 1), [x], (64,), options)
    # Constants in the order of the signature, options of the launch left out.
    assert (len(kernel.bound), kernel.called) == (1, [((3, 1, 1), (x, 64, 16, "ieee"))])
    others = [(x[1:], 64, options), (x.half(), 64, options), (x, 1, options), (x, 64, options | dict(BLOCK=32))]
    for tensor, size, its_options in others:
        call(kernel, (3, 1, 1), [tensor], (size,), its_options)
    assert (len(kernel.bound), len(kernel.called)) == (5, 1)
    call(kernel, (7, 1, 1), [x.clone()], (64,), options)
    assert (len(kernel.bound), len(kernel.called)) == (5, 2)


def test_interpreter_compiles_nothing():
    kernel = Kernel(compiles=False)
    for _ in range(2):
        call(kernel, (1, 1, 1), [torch.zeros(1)], (1,), {"BLOCK": 16, "PRECISION": "ieee"})
    assert len(kernel.bound) == 2
