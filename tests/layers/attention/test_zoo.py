"""What every attention of the table must do, whatever its formula: one parametrised case for each kind and option."""

import math
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import set_fused_attn
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from soft_vit.layers import ATTENTIONS, Attention

DIM = 24

# Options that take another path through a kind; every name of the table is tested with its defaults besides.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("atrous", {"dilation": 4}),
    ("agent", {"local_kernel": 0}),
    ("bigbird", {"block_size": 8}),
    ("focused", {"power": 8.0, "local_kernel": 0}),
    ("gau", {"chunk_size": 16}),
    ("linear", {"features": "relu"}),
    ("linformer", {"sharing": "none"}),
    ("linformer", {"sharing": "kv"}),
    ("nystrom", {"landmarks": "segment", "max_landmarks": None, "local_kernel": 0}),
    ("performer", {"kernel": "relu"}),
    ("reformer", {"chunk_size": 16}),
    ("spatial_reduction", {"linear": True}),
    ("synthesizer", {"scores": "random"}),
    ("synthesizer", {"scores": "dense+factorized_dense+factorized_random"}),
]
CASES = [(name, {}) for name in ATTENTIONS] + VARIANTS

# The largest tensor of a kind may grow with N by at most this power. A cost that is not here is only kept from N x N.
SLOPES = {"N": 1.1, "N log N": 1.2, "N^1.5": 1.6}


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()) or "default"


every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)


def make(
    name: str, options: dict[str, Any], grid: tuple[int, int] = (7, 9), num_heads: int = 3, dim: int = DIM
) -> Attention:
    """An attention with weights large enough that its matrix is far from uniform."""
    torch.manual_seed(0)
    attn = ATTENTIONS[name](dim, num_heads, feat_size=grid, sr_ratio=min(2, *grid), **options)
    for module in attn.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=dim**-0.5)
    return attn.eval()


def tokens(grid: tuple[int, int], batch: int = 2, dim: int = DIM, seed: int = 1) -> Tensor:
    return torch.randn(batch, grid[0] * grid[1], dim, generator=torch.Generator().manual_seed(seed))


@every_case
@pytest.mark.parametrize("grid", [(7, 9), (15, 13), (1, 1), (1, 40)])
def test_any_map_gives_a_finite_result_and_gradient(name: str, options: dict[str, Any], grid: tuple[int, int]) -> None:
    attn, x = make(name, options, grid).train(), tokens(grid).requires_grad_()
    y = attn(x, grid)
    assert y.shape == x.shape
    assert y.isfinite().all()
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    for parameter, value in attn.named_parameters():
        assert value.grad is not None, parameter
        assert value.grad.isfinite().all(), parameter


@every_case
def test_gradient_reaches_every_parameter(name: str, options: dict[str, Any]) -> None:
    attn, x = make(name, options), tokens((7, 9))
    attn(x, (7, 9)).square().sum().backward()
    dead = [parameter for parameter, value in attn.named_parameters() if not value.grad.any()]
    assert not dead


@every_case
def test_map_other_than_the_one_it_was_built_for(name: str, options: dict[str, Any]) -> None:
    attn = make(name, options, (8, 8))
    for grid in ((7, 9), (15, 13)):
        x = tokens(grid)
        y = attn(x, grid)
        assert y.shape == x.shape
        assert y.isfinite().all()


@every_case
@pytest.mark.parametrize("num_heads", [1, 4, DIM])
def test_any_head_count_that_divides_the_width(name: str, options: dict[str, Any], num_heads: int) -> None:
    x = tokens((7, 9))
    assert make(name, options, num_heads=num_heads)(x, (7, 9)).isfinite().all()


@every_case
def test_head_count_that_does_not_divide_is_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="5 heads"):
        make(name, options, num_heads=5)


@every_case
def test_bf16_autocast_is_finite(name: str, options: dict[str, Any]) -> None:
    attn, x = make(name, options), tokens((15, 13)).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = attn(x, (15, 13))
    assert y.isfinite().all()
    y.float().square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attn.parameters())


@every_case
def test_large_weights_in_fp16_and_large_inputs_are_finite(name: str, options: dict[str, Any]) -> None:
    attn, x = make(name, options), tokens((15, 13))
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.mul_(3)
        assert attn(1e6 * x, (15, 13)).isfinite().all()
        assert attn.half()(x.half(), (15, 13)).isfinite().all()


@every_case
def test_timms_switch_leaves_fused_kernels_out(name: str, options: dict[str, Any], monkeypatch) -> None:
    fused, x = make(name, options).double(), tokens((7, 9)).double()
    monkeypatch.setattr(timm.layers.config, "_USE_FUSED_ATTN", timm.layers.config._USE_FUSED_ATTN)
    set_fused_attn(False)
    plain, expected = make(name, options).double(), fused(x, (7, 9))
    monkeypatch.delattr(F, "scaled_dot_product_attention")
    torch.testing.assert_close(plain(x, (7, 9)), expected, rtol=1e-9, atol=1e-11)


@every_case
def test_no_image_gives_no_result(name: str, options: dict[str, Any]) -> None:
    attn, x = make(name, options), tokens((7, 9), batch=0).requires_grad_()
    y = attn(x, (7, 9))
    assert y.shape == x.shape
    y.sum().backward()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in attn.parameters())


@every_case
def test_an_image_does_not_see_its_batch(name: str, options: dict[str, Any]) -> None:
    attn, grid = make(name, options), (7, 9)
    x, other = tokens(grid, batch=1), 30 * tokens(grid, batch=2, seed=2)
    alone, among = attn(x, grid), attn(torch.cat([other[:1], x, other[1:]]), grid)[1:2]
    # Matrix products of another batch size may add in another order: some ulps, which an inverse may enlarge.
    assert (among - alone).norm() <= 1e-5 * alone.norm()


@every_case
def test_traced_forward_equals_eager_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    attn = make(name, options)
    traced = torch.fx.symbolic_trace(attn)
    for grid in ((7, 9), (15, 13)):
        x = tokens(grid)
        assert torch.equal(traced(x, grid), attn(x, grid))


@every_case
def test_captured_as_one_graph(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    attn, grid, x = make(name, options), (7, 9), tokens((7, 9))
    captured = torch.compile(attn, fullgraph=True, backend="eager")
    # To rounding: a graph takes every step of an iteration that has converged.
    torch.testing.assert_close(captured(x, grid), attn(x, grid))


@pytest.mark.parametrize(("name", "options"), [("bigbird", {"block_size": 8}), ("local", {})], ids=case_id)
def test_a_graph_for_any_map_also_holds_for_one_that_needs_no_padding(name: str, options: dict[str, Any]) -> None:
    """What lies in memory in another order there must not be taken for a view."""
    torch._dynamo.reset()
    attn = make(name, options)
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
    for grid in ((7, 9), (15, 7), (16, 8)):
        torch.testing.assert_close(compiled(tokens(grid), grid), attn(tokens(grid), grid))


@every_case
def test_exported_with_any_batch(name: str, options: dict[str, Any]) -> None:
    attn, grid = make(name, options), (7, 9)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(attn, (tokens(grid), grid), dynamic_shapes=({0: batch}, (None, None)))
    x = tokens(grid, batch=5)
    expected = attn(x, grid)
    # Exported products may be laid out in another way.
    assert (program.module()(x, grid) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.slow
@every_case
def test_compiled_forward_and_gradient(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    attn, grid = make(name, options), (7, 9)
    eager, compiled = tokens(grid).requires_grad_(), tokens(grid).requires_grad_()
    attn(eager, grid).square().sum().backward()
    torch.compile(attn, fullgraph=True)(compiled, grid).square().sum().backward()
    assert (compiled.grad - eager.grad).norm() <= 1e-4 * eager.grad.norm()


@every_case
def test_device_and_dtype_reach_every_tensor(name: str, options: dict[str, Any]) -> None:
    attn = ATTENTIONS[name](DIM, 3, feat_size=(7, 9), sr_ratio=2, **options, device="meta")
    assert all(value.is_meta for value in attn.state_dict().values())
    attn = ATTENTIONS[name](DIM, 3, feat_size=(7, 9), sr_ratio=2, **options, dtype=torch.float64)
    assert all(value.dtype == torch.float64 for value in attn.state_dict().values() if value.is_floating_point())
    assert attn(tokens((7, 9)).double(), (7, 9)).dtype == torch.float64


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))])
        return result


def largest_tensor(name: str, options: dict[str, Any], grid: tuple[int, int]) -> int:
    """Elements of the largest tensor in forward and backward of one image, one head of width 8."""
    attn, x = make(name, options, grid, num_heads=1, dim=8), tokens(grid, batch=1, dim=8)
    with LargestTensor() as record:
        attn(x, grid).square().sum().backward()
    return record.numel


@pytest.mark.parametrize(
    ("name", "options", "cost"),
    [
        ("agent", {}, "N"),
        ("agent", {"max_agents": None}, "N^2/r^2"),
        ("gau", {"form": "linear"}, "N"),
        ("gau", {"form": "quadratic"}, "N^2"),
        ("nystrom", {}, "N"),
        ("nystrom", {"max_landmarks": None}, "N^2/r^2 + N^3/r^6"),
        ("skyformer", {}, "N"),
        ("skyformer", {"max_landmarks": None}, "N^2/r^2 + N^3/r^6"),
        ("soft", {}, "N^2/r^2 + N^3/r^6"),
        ("soft", {"max_bottleneck": 7}, "N"),
        ("soft_norm", {"num_bottleneck": 9}, "N"),
        ("sparse", {}, "N^1.5"),
        ("sparse", {"dilation": 4}, "N^2/k^2"),
        ("spatial_reduction", {}, "N^2/r^2"),
        ("spatial_reduction", {"linear": True}, "N"),
    ],
    ids=str,
)
def test_cost_is_that_of_the_options(name: str, options: dict[str, Any], cost: str) -> None:
    assert make(name, options).cost == cost


def promises_less_than_n_squared(case: tuple[str, dict[str, Any]]) -> bool:
    name, options = case
    # Landmarks without a limit grow with the map, on request.
    return ATTENTIONS[name].cost != "N^2" and options.get("max_landmarks", 7) is not None


@pytest.mark.parametrize(("name", "options"), list(filter(promises_less_than_n_squared, CASES)), ids=case_id)
def test_no_tensor_has_n_squared_elements(name: str, options: dict[str, Any]) -> None:
    if name in ("soft", "soft_norm"):
        # By default their bottleneck tokens grow with the map, as released.
        options = dict(options, max_bottleneck=(7, 7))
    small, large = (28, 28), (56, 112)
    growth = large[0] * large[1] / (small[0] * small[1])
    before, after = largest_tensor(name, options, small), largest_tensor(name, options, large)
    assert after < (large[0] * large[1]) ** 2
    cost = make(name, options).cost
    if cost in SLOPES:
        assert math.log(after / before) / math.log(growth) <= SLOPES[cost]
