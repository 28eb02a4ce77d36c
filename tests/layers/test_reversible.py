"""Reversible blocks against the same two streams differentiated by autograd."""

import copy
from functools import partial

import pytest
import torch
from stored import saved_bytes
from torch import Tensor, nn
from torch.nn.parallel import replicate

from soft_vit.layers import PostNormBlock, PreNormBlock, attention_class, reversible_blocks
from soft_vit.layers.reversible import plain_streams

DIM, GRID = 12, (7, 9)

# Float64: the streams come back from differences with some roundings each, and a gradient passes all of them.
TOLERANCE = 1e-10


def make_blocks(attention: str = "softmax", depth: int = 2, **options) -> nn.ModuleList:
    torch.manual_seed(0)
    blocks = nn.ModuleList()
    for i in range(depth):
        attn = attention_class(attention)(DIM, 3, feat_size=GRID, sr_ratio=2)
        blocks.append((PostNormBlock if i % 2 else PreNormBlock)(DIM, attn, **options))
    for module in blocks.double().modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)
    return blocks


def tokens(batch: int = 2) -> Tensor:
    return torch.randn(batch, GRID[0] * GRID[1], DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def plain(blocks: nn.ModuleList, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
    return 0.5 * sum(plain_streams(blocks, x, feat_size, 0))


def result_and_gradients(compute, blocks: nn.ModuleList, x: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    y = compute(blocks, x, GRID)
    after = torch.get_rng_state()
    y.backward(torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2)))
    # Computing again must not move the random state of the program.
    assert torch.equal(torch.get_rng_state(), after)
    grads = {name: parameter.grad.clone() for name, parameter in blocks.named_parameters() if parameter.requires_grad}
    buffers = {name: buffer.double().clone() for name, buffer in blocks.named_buffers()}
    return {"y": y.detach(), "x": x.grad, **grads, **buffers}


def assert_equals_autograd(blocks: nn.ModuleList, x: Tensor, compute=reversible_blocks) -> None:
    actual, expected = (result_and_gradients(form, copy.deepcopy(blocks), x) for form in (compute, plain))
    scale = max(value.norm() for value in expected.values())
    for name, value in expected.items():
        # A gradient that cancels, as that of a key's bias, is rounding: held against the largest instead.
        assert (actual[name] - value).norm() <= TOLERANCE * max(value.norm(), 1e-3 * scale), name


def test_blocks_are_the_two_streams_of_the_paper() -> None:
    blocks, x = make_blocks(), tokens()
    x1 = x2 = x
    for block in blocks:
        x1 = x1 + block.attn(block.norm1(x2), GRID)
        x2 = x2 + block.mlp(block.norm2(x1))
    assert torch.equal(reversible_blocks(blocks, x, GRID), (x1 + x2) / 2)


# With a convolution, buffers, and a gradient of its own for parts.
@pytest.mark.parametrize("attention", ["softmax", "soft", "vq", "performer", "local"])
def test_gradients_equal_those_of_autograd(attention: str) -> None:
    assert_equals_autograd(make_blocks(attention).eval(), tokens())


@pytest.mark.parametrize("options", [{"drop_path": 0.5}, {"proj_drop": 0.3}, {"mlp_chunks": 3, "proj_drop": 0.3}])
def test_what_is_random_is_the_same_when_computed_again(options: dict) -> None:
    assert_equals_autograd(make_blocks("softmax", depth=4, **options).train(), tokens(batch=6))


def test_random_sampling_in_training_is_the_same_when_computed_again() -> None:
    torch.manual_seed(0)
    attns = [attention_class("soft")(DIM, 3, feat_size=GRID, sr_ratio=2, sampling="random") for _ in range(2)]
    assert_equals_autograd(nn.ModuleList(PostNormBlock(DIM, attn) for attn in attns).double().train(), tokens())


class TokenBatchNorm(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


def test_statistics_are_updated_once() -> None:
    blocks = make_blocks()
    blocks[0].norm1 = TokenBatchNorm(DIM).double()
    assert_equals_autograd(blocks.train(), tokens())


def test_second_derivatives_are_right_or_refused() -> None:
    """A penalty of the gradient would be zero in silence."""
    blocks, x = make_blocks("linear"), tokens().requires_grad_()

    def loss(compute, x: Tensor) -> Tensor:
        return compute(blocks, x, GRID).sin().sum()

    (gradient,) = torch.autograd.grad(loss(plain, x), x, create_graph=True)
    (expected,) = torch.autograd.grad(gradient.square().sum(), x)
    penalty = torch.func.grad(lambda x: torch.func.grad(partial(loss, reversible_blocks))(x).square().sum())(x.detach())
    assert (penalty - expected).norm() <= TOLERANCE * expected.norm()
    with pytest.raises(ValueError, match="create_graph"):
        torch.autograd.grad(loss(reversible_blocks, x), x, create_graph=True)


def test_frozen_and_shared_parameters() -> None:
    blocks = make_blocks()
    blocks[0].attn.q.weight.requires_grad_(False)
    blocks[1].mlp = blocks[0].mlp
    assert_equals_autograd(blocks, tokens())


def test_copies_of_data_parallel_pass_gradients_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their parameters are plain tensors; this one, for a GPU, stays on the CPU."""
    broadcast = lambda tensors, *_, **__: [[x.clone() for x in tensors]]  # noqa: E731
    monkeypatch.setitem(replicate.__globals__, "_broadcast_coalesced_reshape", broadcast)
    assert_equals_autograd(make_blocks(), tokens(), lambda blocks, *x: reversible_blocks(*replicate(blocks, [0]), *x))


def test_autocast_is_the_same_when_computed_again() -> None:
    blocks, x = make_blocks().float(), tokens().float()
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = (result_and_gradients(form, copy.deepcopy(blocks), x) for form in (reversible_blocks, plain))
    scale = max(value.norm() for value in expected.values())
    for name, value in expected.items():
        # The streams are fp32 and come back to its rounding, which moves some bf16 roundings by one step of 2^-8.
        assert (actual[name] - value).norm() <= 2**-8 * scale, name


def test_stored_activations_do_not_grow_with_depth() -> None:
    x = tokens().requires_grad_()

    def stored(compute, depth: int) -> int:
        blocks = make_blocks(depth=depth)
        return saved_bytes(lambda: compute(blocks, x, GRID), blocks.parameters())

    assert max(stored(reversible_blocks, depth) for depth in (2, 8)) <= 2 * x.nbytes
    assert stored(plain, 8) >= 8 * 10 * x.nbytes


def test_inference_and_copies() -> None:
    blocks, x = make_blocks(), tokens()
    with torch.no_grad():
        assert torch.equal(reversible_blocks(blocks, x, GRID), plain(blocks, x, GRID))
    assert torch.equal(reversible_blocks(copy.deepcopy(blocks), x, GRID), plain(blocks, x, GRID))
    assert torch.equal(reversible_blocks(nn.ModuleList(), x, GRID), x)
