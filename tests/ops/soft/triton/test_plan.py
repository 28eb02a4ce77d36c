"""Which calls have the same launches."""

import pytest
import torch

pytest.importorskip("triton")

from soft_vit.ops.soft.triton.plan import form, plan_backward, plan_forward

BF16 = torch.bfloat16
CPU = torch.device("cpu")


def of_tokens(N: int, D: int = 32, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(2, N, 3, D, dtype=dtype).transpose(1, 2)


def plans(q: torch.Tensor, v: torch.Tensor, M: int = 9, normalize: bool = False, layout: str = "tokens") -> tuple:
    forms = (form(q), form(torch.empty(2, 3, M, q.shape[3])), form(v))
    forward = plan_forward(CPU, *forms, None, "newton", normalize, 20, 0.01, "rowsum", layout)
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
