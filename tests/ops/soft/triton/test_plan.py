"""How tokens are cut, which calls share launches, and which reuse a compiled kernel, without running kernels."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from soft_vit.ops.soft.options import InverseOptions
from soft_vit.ops.soft.triton.plan import Launch, form, plan_backward, plan_forward
from soft_vit.ops.soft.triton.tiling import pass_tiling

BF16 = torch.bfloat16
CPU = torch.device("cpu")


def of_tokens(N: int, D: int = 32, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(2, N, 3, D, dtype=dtype).transpose(1, 2)


def plans(q: torch.Tensor, v: torch.Tensor, M: int = 9, normalize: bool = False, layout: str = "tokens") -> tuple:
    forms = (form(q), form(torch.empty(2, 3, M, q.shape[3])), form(v))
    forward = plan_forward(CPU, *forms, None, InverseOptions(normalize=normalize), layout)
    return forward, plan_backward(CPU, form(v), *forms, "newton", normalize, layout, layout)


@pytest.mark.parametrize(
    "other",
    [
        dict(q=of_tokens(36), v=of_tokens(36)),
        dict(q=of_tokens(35, dtype=torch.float32)),
        dict(v=of_tokens(35, D=16)),
        # The same shape in another order.
        dict(q=torch.empty(2, 3, 35, 32, dtype=BF16)),
        dict(M=10),
        dict(normalize=True),
        dict(layout="maps"),
    ],
    ids=lambda other: "-".join(other),
)
def test_what_launches_depend_on(other):
    case = dict(q=of_tokens(35), v=of_tokens(35))
    for plan, again, different in zip(plans(**case), plans(**case), plans(**case | other), strict=True):
        assert plan is again
        assert plan is not different


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

    def __init__(self, compiles: bool = True):
        self.bound, self.called, self.compiles = [], [], compiles

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            x, *numbers = arguments
            self.bound.append((grid, x.data_ptr(), numbers, options))
            return Compiled(self) if self.compiles else None

        return launch


class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *arguments: self.kernel.called.append((grid, arguments))


def test_binds_once_for_each_alignment():
    kernel, x = Kernel(), torch.zeros(64)
    launch = Launch(kernel, (3, 1, 1), (64,), dict(num_warps=4, PRECISION="ieee", BLOCK=16))
    for _ in range(2):
        launch(x)
    # Constants in the order of the signature, options of the launch left out.
    assert kernel.called == [((3, 1, 1), (x.data_ptr(), 64, 16, "ieee"))]
    launch(x[1:])
    assert kernel.bound == [((3, 1, 1), tensor.data_ptr(), [64], launch.options) for tensor in (x, x[1:])]
    # As many bytes beyond an aligned address.
    launch(x[5:])
    launch(x.clone())
    assert (len(kernel.bound), len(kernel.called)) == (2, 3)


def test_interpreter_compiles_nothing():
    kernel = Kernel(compiles=False)
    launch = Launch(kernel, (1, 1, 1), (1,), {"BLOCK": 16, "PRECISION": "ieee"})
    for _ in range(2):
        launch(torch.zeros(1))
    assert len(kernel.bound) == 2
