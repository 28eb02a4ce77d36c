"""What every attention of the table must do, whatever its formula: one parametrised case for each kind and option."""

import math
import re
from typing import Any

import attention_cases
import pytest
import timm
import torch
import torch.nn.functional as F
from attention_cases import Case, every, using
from stored import LargestTensor
from timm.layers import set_fused_attn
from torch import Tensor

from soft_vit.layers import ATTENTIONS, attention_options

WIDTH = 24

every_case = every(using("contract"))

# The largest tensor of a kind may grow with N by at most this power. A cost that is not here is only kept from N x N.
SLOPES = {"N": 1.1, "N log N": 1.2, "N^1.5": 1.6}
GRID = (7, 9)


def make(case: Case, grid: tuple[int, ...] = GRID, num_heads: int = 3, dim: int = WIDTH, dtype: Any = None) -> Any:
    return attention_cases.make(case, grid, dim, num_heads, dtype)


def tokens(grid: tuple[int, ...], batch: int = 2, dim: int = WIDTH, seed: int = 1) -> Tensor:
    return attention_cases.tokens(batch, math.prod(grid), dim, seed, dtype=None)


def test_every_attention_is_tested_with_its_defaults() -> None:
    assert {case.kind for case in using("contract") if not case.options} == ATTENTIONS.keys()


@every_case
def test_any_map_and_number_of_heads_give_a_finite_result_and_gradient(case: Case) -> None:
    for built, grid, num_heads, autocast in (
        ((7, 9), (7, 9), 3, False),
        ((8, 8), (15, 13), 4, False),
        ((15, 13), (15, 13), 3, True),
        ((1, 1), (1, 1), WIDTH, False),
        ((1, 40), (1, 40), 1, False),
    ):
        attn, x = make(case, built, num_heads).train(), tokens((1, 2 * autocast + math.prod(grid))).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = attn(x, grid, 2 * autocast)
        assert y.shape == x.shape
        assert y.isfinite().all()
        y.float().square().sum().backward()
        assert x.grad.isfinite().all()
        for parameter, value in attn.named_parameters():
            assert value.grad.isfinite().all(), parameter
            # Among one token, or in one row, some have nothing to say.
            assert value.grad.any() or min(grid) == 1, parameter


@every_case
def test_large_weights_in_fp16_and_large_inputs_are_finite(case: Case) -> None:
    attn, x = make(case), tokens((15, 13))
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.mul_(3)
        # As in a block, where a LayerNorm squares the result.
        y = attn(1e6 * x, (15, 13))
        assert F.layer_norm(y, y.shape[-1:]).isfinite().all()
        assert attn.half()(x.half(), (15, 13)).isfinite().all()


@every_case
def test_timms_switch_leaves_fused_kernels_out(case: Case, monkeypatch) -> None:
    # Two prefix tokens before a map of 7 x 9.
    fused, x = make(case).double(), tokens((5, 13)).double()
    monkeypatch.setattr(timm.layers.config, "_USE_FUSED_ATTN", timm.layers.config._USE_FUSED_ATTN)
    set_fused_attn(False)
    plain, expected = make(case).double(), fused(x, (7, 9), 2)
    monkeypatch.delattr(F, "scaled_dot_product_attention")
    torch.testing.assert_close(plain(x, (7, 9), 2), expected, rtol=1e-9, atol=1e-11)


@every_case
def test_an_image_does_not_see_its_batch(case: Case) -> None:
    attn, grid = make(case), (7, 9)
    x, other = tokens(grid, batch=1), 30 * tokens(grid, batch=2, seed=2)
    alone, among = attn(x, grid), attn(torch.cat([other[:1], x, other[1:]]), grid)[1:2]
    # Matrix products of another batch size may add in another order: some ulps, which an inverse may enlarge.
    assert (among - alone).norm() <= 1e-5 * alone.norm()
    x = tokens(grid, batch=0).requires_grad_()
    mask = None if attn.traits.mask_refusal else x[..., 0] > 0
    y = attn(x, grid, 0, mask)
    assert y.shape == torch.no_grad()(attn.forward)(x, grid, 0, mask).shape == x.shape
    y.sum().backward()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in attn.parameters())


@pytest.mark.slow
@every_case
def test_compiled_for_any_map_behind_prefix_tokens(case: Case) -> None:
    """What lies in memory in another order where a map needs no padding must not be taken for a view."""
    torch._dynamo.reset()
    attn = make(case)
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
    for grid in ((7, 9), (16, 8)):
        x, results = torch.cat([tokens((1, 2)), tokens(grid)], dim=1).requires_grad_(), []
        for form in (attn, compiled):
            y = form(x, grid, 2)
            results.append((y, *torch.autograd.grad(y.square().sum(), x)))
        for eager, graph in zip(*results, strict=True):
            assert (graph - eager).norm() <= 1e-4 * eager.norm(), grid


@every_case
def test_device_and_dtype_reach_every_tensor(case: Case) -> None:
    options = {"feat_size": GRID, "sr_ratio": 2, **case.options}
    attn = ATTENTIONS[case.kind](WIDTH, 3, **options, device="meta")
    assert all(value.is_meta for value in attn.state_dict().values())
    for given, default in ((torch.float64, torch.float32), (None, torch.bfloat16)):
        torch.set_default_dtype(default)
        try:
            dtype, attn = given or default, ATTENTIONS[case.kind](WIDTH, 3, **options, dtype=given)
            x = tokens(GRID).to(dtype).requires_grad_()
            y = attn(x, GRID)
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(value.dtype == dtype for value in (y, *attn.state_dict().values()) if value.is_floating_point())
        y.sum().backward()
        assert x.grad.isfinite().all()


def largest_tensor(case: Case, grid: tuple[int, int]) -> int:
    """Elements of the largest tensor in forward and backward of one image, one head of width 8."""
    attn, x = make(case, grid, num_heads=1, dim=8), tokens(grid, batch=1, dim=8).requires_grad_()
    with LargestTensor() as record:
        attn(x, grid).square().sum().backward()
    return record.numel


def promises_less_than_n_squared(case: Case) -> bool:
    # Landmarks without a limit grow with the map, on request.
    by_request = case.options.get("max_landmarks", 7) is None or case.options.get("form") == "quadratic"
    return ATTENTIONS[case.kind].traits.cost != "N^2" and not by_request


@every(list(filter(promises_less_than_n_squared, using("contract"))))
def test_no_tensor_has_n_squared_elements(case: Case) -> None:
    if case.kind in ("soft", "soft_norm", "soft_plus"):
        # By default their bottleneck tokens grow with the map, as released.
        case = attention_cases.case(case.kind, max_bottleneck=(7, 7))
    small, large = (20, 20), (30, 50)
    growth = large[0] * large[1] / (small[0] * small[1])
    before, after = largest_tensor(case, small), largest_tensor(case, large)
    assert after < (large[0] * large[1]) ** 2
    cost = make(case).traits.cost
    if cost in SLOPES:
        assert math.log(after / before) / math.log(growth) <= SLOPES[cost]


INVALID_OPTIONS = [("bigbird", {"block_size": 0}), ("gau", {"chunk_size": 0})]
INVALID_OPTIONS += [("linear", {"features": "gelu"}), ("longformer", {"global_grid": (0, 0)})]
INVALID_OPTIONS += [("performer", {"num_features": 0})]
INVALID_OPTIONS += [("reformer", {"chunk_size": 1}), ("skyformer", {"ridge": 0.0}), ("vq", {"num_codes": 0})]
INVALID_OPTIONS += [("soft", {"feat_size": (2, 3), "num_bottleneck": 9}), ("soft", {"sr_ratio": 0})]
INVALID_OPTIONS += [("soft", {"inverse": "cholesky", "ridge": 0.0}), ("local", {"sr_ratio": 2.0})]
INVALID_OPTIONS += [("synthesizer", {"scores": "vanilla"}), ("vq", {"decay": 1.0})]


@pytest.mark.parametrize(("kind", "options"), INVALID_OPTIONS)
def test_options_without_a_sense_are_refused(kind: str, options: dict[str, Any]) -> None:
    """When the layer is made, naming the last of these options and its value."""
    name, value = list(options.items())[-1]
    with pytest.raises(ValueError, match=rf"{name}.*{re.escape(str(value))}"):
        ATTENTIONS[kind](WIDTH, 3, **{"feat_size": (8, 8), **options})


@pytest.mark.parametrize("kind", ["performer", "reformer"])
def test_random_directions_change_by_redraw_alone(kind: str) -> None:
    attn, x = make(attention_cases.case(kind), (15, 13)).train(), tokens((15, 13))
    before = attn(x, (15, 13))
    assert torch.equal(attn(x, (15, 13)), before)
    redrawn = []
    for _ in range(2):
        attn.redraw(torch.Generator().manual_seed(3))
        redrawn.append(attn(x, (15, 13)))
    assert torch.equal(*redrawn)
    assert not torch.equal(redrawn[0], before)
    other = make(attention_cases.case(kind), (15, 13))
    assert torch.equal(other(x, (15, 13)), before)
    other.load_state_dict(attn.state_dict())
    assert torch.equal(other(x, (15, 13)), redrawn[0])


@pytest.mark.parametrize("kind", [kind for kind, cls in ATTENTIONS.items() if "attn_drop" in attention_options(cls)])
def test_attention_dropout_acts_in_training_alone(kind: str) -> None:
    attn, x = make(attention_cases.case(kind, attn_drop=0.5)), tokens(GRID)
    assert torch.equal(attn(x, GRID), make(attention_cases.case(kind))(x, GRID))
    assert not torch.equal(attn.train()(x, GRID), attn(x, GRID))
