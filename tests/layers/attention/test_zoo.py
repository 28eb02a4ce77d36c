"""What every attention of the table must do, whatever its formula: one parametrised case for each kind and option."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import set_fused_attn
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from soft_vit.layers import ATTENTIONS, Attention, attention_options

DIM = 24

# Options that take another path through a kind; every name of the table is tested with its defaults besides.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("atrous", {"dilation": 4}),
    ("agent", {"local_kernel": 0}),
    ("bigbird", {"block_size": 8}),
    ("focused", {"power": 8.0, "local_kernel": 0}),
    ("gau", {"chunk_size": 16}),
    ("gau", {"form": "quadratic"}),
    ("linear", {"features": "relu"}),
    ("linformer", {"sharing": "none"}),
    ("linformer", {"sharing": "kv"}),
    ("mala", {"local_kernel": 0}),
    ("nystrom", {"landmarks": "segment", "max_landmarks": None, "local_kernel": 0}),
    ("performer", {"kernel": "relu"}),
    ("reformer", {"chunk_size": 16}),
    ("spatial_reduction", {"linear": True}),
    ("synthesizer", {"scores": "random"}),
    ("ttt", {"rope": True}),
    ("synthesizer", {"scores": "dense+factorized_dense+factorized_random"}),
]
CASES = [(name, {}) for name in ATTENTIONS] + VARIANTS

# The largest tensor of a kind may grow with N by at most this power. A cost that is not here is only kept from N x N.
SLOPES = {"N": 1.1, "N log N": 1.2, "N^1.5": 1.6}


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()) or "default"


every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)


def make(
    name: str, options: dict[str, Any], grid: tuple[int, ...] = (7, 9), num_heads: int = 3, dim: int = DIM
) -> Attention:
    """An attention with weights large enough that its matrix is far from uniform."""
    torch.manual_seed(0)
    attn = ATTENTIONS[name](dim, num_heads, feat_size=grid, sr_ratio=min(2, *grid), **options)
    for module in attn.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=dim**-0.5)
    return attn.eval()


def tokens(grid: tuple[int, ...], batch: int = 2, dim: int = DIM, seed: int = 1) -> Tensor:
    return torch.randn(batch, math.prod(grid), dim, generator=torch.Generator().manual_seed(seed))


@every_case
def test_any_map_gives_a_finite_result_and_gradient(name: str, options: dict[str, Any]) -> None:
    for grid in ((7, 9), (15, 13), (1, 1), (1, 40)):
        attn, x = make(name, options, grid).train(), tokens(grid).requires_grad_()
        y = attn(x, grid)
        assert y.shape == x.shape
        assert y.isfinite().all()
        y.square().sum().backward()
        assert x.grad.isfinite().all()
        for parameter, value in attn.named_parameters():
            assert value.grad.isfinite().all(), parameter
            # Among one token, or in one row, some have nothing to say.
            assert value.grad.any() or min(grid) == 1, parameter


@every_case
def test_map_other_than_the_one_it_was_built_for(name: str, options: dict[str, Any]) -> None:
    attn = make(name, options, (8, 8))
    for grid in ((7, 9), (15, 13)):
        x = tokens(grid)
        y = attn(x, grid)
        assert y.shape == x.shape
        assert y.isfinite().all()


@every_case
def test_any_head_count_that_divides_the_width(name: str, options: dict[str, Any]) -> None:
    for num_heads in (1, 4, DIM):
        assert make(name, options, num_heads=num_heads)(tokens((7, 9)), (7, 9)).isfinite().all()
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
        # As in a block, where a LayerNorm squares the result.
        y = attn(1e6 * x, (15, 13))
        assert F.layer_norm(y, y.shape[-1:]).isfinite().all()
        assert attn.half()(x.half(), (15, 13)).isfinite().all()


@every_case
def test_timms_switch_leaves_fused_kernels_out(name: str, options: dict[str, Any], monkeypatch) -> None:
    # Two prefix tokens before a map of 7 x 9.
    fused, x = make(name, options).double(), tokens((5, 13)).double()
    monkeypatch.setattr(timm.layers.config, "_USE_FUSED_ATTN", timm.layers.config._USE_FUSED_ATTN)
    set_fused_attn(False)
    plain, expected = make(name, options).double(), fused(x, (7, 9), 2)
    monkeypatch.delattr(F, "scaled_dot_product_attention")
    torch.testing.assert_close(plain(x, (7, 9), 2), expected, rtol=1e-9, atol=1e-11)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "grids"),
    [
        ("atrous", {}, [(7,), (15,), (16,)]),
        ("bigbird", {"block_size": 8}, [(7, 9), (15, 7), (16, 8)]),
        ("local", {}, [(7, 9), (15, 7), (16, 8)]),
    ],
    ids=["atrous", "bigbird", "local"],
)
def test_a_graph_for_any_map_also_holds_for_one_that_needs_no_padding(
    name: str, options: dict[str, Any], grids: list[tuple[int, ...]]
) -> None:
    """What lies in memory in another order there must not be taken for a view."""
    torch._dynamo.reset()
    attn = make(name, options, grids[0])
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
    for grid in grids:
        torch.testing.assert_close(compiled(tokens(grid), grid), attn(tokens(grid), grid))


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*case, marks=pytest.mark.slow) if case[1] else case for case in CASES],
    ids=case_id,
)
def test_exported_with_any_batch(name: str, options: dict[str, Any]) -> None:
    # A graph has nodes of each iteration.
    few = {"newton_iters": 2} if "newton_iters" in attention_options(ATTENTIONS[name]) else {}
    attn, grid = make(name, {**few, **options}), (7, 9)
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
    results = []
    for form in (attn, torch.compile(attn, fullgraph=True)):
        x = tokens(grid).requires_grad_()
        y = form(x, grid)
        results.append((y.detach(), *torch.autograd.grad(y.square().sum(), x)))
    for eager, compiled in zip(*results, strict=True):
        assert (compiled - eager).norm() <= 1e-4 * eager.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["focused", "polaformer", "agent"])
def test_compiled_gradient_for_any_map_behind_prefix_tokens(name: str) -> None:
    torch._dynamo.reset()
    attn, grid = make(name, {}), (7, 9)
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager", dynamic=True)
    # Two prefix tokens before the map.
    x = tokens((5, 13)).requires_grad_()
    grads = [torch.autograd.grad(form(x, grid, 2).square().sum(), x)[0] for form in (attn, compiled)]
    torch.testing.assert_close(*grads)


@every_case
def test_device_and_dtype_reach_every_tensor(name: str, options: dict[str, Any]) -> None:
    attn = ATTENTIONS[name](DIM, 3, feat_size=(7, 9), sr_ratio=2, **options, device="meta")
    assert all(value.is_meta for value in attn.state_dict().values())
    attn = ATTENTIONS[name](DIM, 3, feat_size=(7, 9), sr_ratio=2, **options, dtype=torch.float64)
    assert all(value.dtype == torch.float64 for value in attn.state_dict().values() if value.is_floating_point())
    assert attn(tokens((7, 9)).double(), (7, 9)).dtype == torch.float64


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def half_precision(request) -> Iterator[torch.dtype]:
    """A default dtype of 16 bits."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    try:
        yield request.param
    finally:
        torch.set_default_dtype(before)


@every_case
def test_builds_and_runs_under_a_default_dtype_of_16_bits(
    name: str, options: dict[str, Any], half_precision: torch.dtype
) -> None:
    attn, x = make(name, options).train(), tokens((7, 9)).requires_grad_()
    y = attn(x, (7, 9))
    assert y.dtype == half_precision
    y.sum().backward()
    assert x.grad.isfinite().all()


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
    attn, x = make(name, options, grid, num_heads=1, dim=8), tokens(grid, batch=1, dim=8).requires_grad_()
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
    by_request = options.get("max_landmarks", 7) is None or options.get("form") == "quadratic"
    return ATTENTIONS[name].cost != "N^2" and not by_request


@pytest.mark.parametrize(("name", "options"), list(filter(promises_less_than_n_squared, CASES)), ids=case_id)
def test_no_tensor_has_n_squared_elements(name: str, options: dict[str, Any]) -> None:
    if name in ("soft", "soft_norm", "soft_plus"):
        # By default their bottleneck tokens grow with the map, as released.
        options = dict(options, max_bottleneck=(7, 7))
    small, large = (28, 28), (56, 112)
    growth = large[0] * large[1] / (small[0] * small[1])
    before, after = largest_tensor(name, options, small), largest_tensor(name, options, large)
    assert after < (large[0] * large[1]) ** 2
    cost = make(name, options).cost
    if cost in SLOPES:
        assert math.log(after / before) / math.log(growth) <= SLOPES[cost]


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("agent", "max_agents", 0),
        ("agent", "local_kernel", 2),
        ("bigbird", "block_size", 0),
        ("bigbird", "num_global", -1),
        ("bigbird", "num_random", -1),
        ("bigbird", "window", 2),
        ("focused", "power", 0),
        ("focused", "local_kernel", -1),
        ("gau", "chunk_size", 0),
        ("gau", "expansion", 0.0),
        ("gau", "form", "cubic"),
        ("gau", "qk_dim", 0),
        ("linear", "features", "gelu"),
        ("linformer", "proj_k", 0),
        ("longformer", "global_grid", (0, 0)),
        ("mala", "local_kernel", 4),
        ("nystrom", "inverse", "lu"),
        ("nystrom", "local_kernel", 4),
        ("nystrom", "max_landmarks", 0),
        ("performer", "num_features", 0),
        ("reformer", "chunk_size", 1),
        ("reformer", "num_rounds", 0),
        ("skyformer", "max_landmarks", (0, 7)),
        ("skyformer", "ridge", 0.0),
        ("soft", "local_kernel", -3),
        ("soft", "max_bottleneck", (3,)),
        ("soft", "max_bottleneck", (7, -1)),
        ("soft", "newton_gradient", "x"),
        ("soft", "newton_iters", -1),
        ("soft", "newton_start", "x"),
        ("soft", "ridge", -0.5),
        ("synthesizer", "scores", "dense+dense"),
        ("synthesizer", "scores", "vanilla"),
        ("synthesizer", "scores", ""),
    ],
)
def test_options_without_a_sense_are_refused(name: str, option: str, value: Any) -> None:
    """When the layer is made, naming the option and its value."""
    with pytest.raises(ValueError, match=rf"{option}.*{re.escape(str(value))}"):
        ATTENTIONS[name](DIM, 3, feat_size=(8, 8), **{option: value})


def test_options_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="ridge"):
        ATTENTIONS["soft"](DIM, 3, feat_size=(8, 8), inverse="cholesky", ridge=0.0)
    with pytest.raises(ValueError, match="rank=0"):
        ATTENTIONS["synthesizer"](DIM, 3, feat_size=(8, 8), scores="factorized_random", rank=0)
