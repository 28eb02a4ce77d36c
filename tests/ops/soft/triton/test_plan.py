"""How tokens are cut, and which launches reuse a compiled kernel, without running kernels."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from soft_vit.ops.soft.triton.plan import Launch
from soft_vit.ops.soft.triton.tiling import pass_tiling


@pytest.mark.parametrize(
    ("num_heads", "num_tokens", "chunks"), [(1, 1, 1), (16, 3136, 7), (2, 32768, 64), (16, 32768, 32), (64, 32768, 16)]
)
def test_chunks_of_tokens(num_heads, num_tokens, chunks):
    for backward in (False, True):
        tiling = pass_tiling(num_heads, num_tokens, 49, 64, 64, "split", backward)
        assert tiling.chunks == chunks
        assert tiling.tiles * tiling.chunks * tiling.block_n >= num_tokens


class Kernel:
    """A stand-in for a Triton kernel that records bindings and the arguments of compiled calls."""

    params = tuple(SimpleNamespace(name=name) for name in ("x", "size", "BLOCK", "PRECISION"))

    def __init__(self):
        self.bound, self.called = [], []

    def __getitem__(self, grid):
        def launch(x, *numbers, **options):
            self.bound.append((grid, x.data_ptr(), numbers, options))
            return {grid: lambda *arguments: self.called.append(arguments)}

        return launch


def test_binds_once_for_each_alignment():
    kernel, x = Kernel(), torch.zeros(64)
    launch = Launch(kernel, (3, 1, 1), (64,), dict(num_warps=4, PRECISION="ieee", BLOCK=16))
    for _ in range(2):
        launch(x)
    # Constants in the order of the signature, options of the launch left out.
    assert kernel.called == [(x.data_ptr(), 64, 16, "ieee")]
    launch(x[1:])
    assert kernel.bound == [((3, 1, 1), tensor.data_ptr(), (64,), launch.options) for tensor in (x, x[1:])]
    # As many bytes beyond an aligned address.
    launch(x[5:])
    launch(x.clone())
    assert (len(kernel.bound), len(kernel.called)) == (2, 3)
