"""Reformer against dense shared-query-key attention under the mask that its hashes stand for."""

import pytest
import torch
from torch import Tensor

from soft_vit.layers.attention.reformer import SELF_SCORE, angular_buckets, bucket_bits, lsh_attention

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def directions(rounds: int, dim: int) -> Tensor:
    return torch.randn(rounds, dim, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def queries_and_values(tokens: int, batch: int = 2, heads: int = 3, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (2, batch, heads, tokens, dim)
    qk, v = torch.randn(shape, dtype=torch.float64, generator=generator).mul(2)
    return qk.requires_grad_(), v.requires_grad_()


def seen_in_round(buckets: list[int], chunk_size: int) -> Tensor:
    """Which tokens each one sees in a round, by the words of the paper; bool `[N, N]`."""
    order = sorted(range(len(buckets)), key=lambda token: (buckets[token], token))
    chunk = {token: place // chunk_size for place, token in enumerate(order)}
    return torch.tensor(
        [
            [buckets[i] == buckets[j] and chunk[i] - chunk[j] in (0, 1) for j in range(len(buckets))]
            for i in range(len(buckets))
        ]
    )


def dense_attention(qk: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = qk @ (qk / qk.norm(dim=-1, keepdim=True)).mT
    scores = torch.where(torch.eye(qk.shape[2], dtype=torch.bool), SELF_SCORE, scores)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def assert_same_with_gradients(qk: Tensor, v: Tensor, x: Tensor, expected: Tensor) -> None:
    weight = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    grads = torch.autograd.grad((x * weight).sum(), (qk, v))
    expected_grads = torch.autograd.grad((expected * weight).sum(), (qk, v))
    for name, a, b in zip(("x", "dqk", "dv"), (x, *grads), (expected, *expected_grads), strict=True):
        assert (a - b).norm() <= TOLERANCE * b.norm(), name


@pytest.mark.parametrize(
    ("tokens", "chunk_size", "rounds"),
    # In the fourth some tokens see no other, in the others one chunk holds all.
    [(63, 16, 3), (130, 64, 4), (64, 16, 2), (40, 3, 1), (63, 63, 1), (63, 64, 3), (63, 1000, 1)],
)
def test_equals_dense_attention_over_the_union_of_rounds(tokens: int, chunk_size: int, rounds: int) -> None:
    qk, v = queries_and_values(tokens)
    rotations = directions(rounds, 8)
    buckets = angular_buckets(qk, rotations, bucket_bits(tokens, chunk_size))
    mask = torch.stack(
        [
            torch.stack([seen_in_round(b.tolist(), chunk_size) for b in of_head]).any(0)
            for of_image in buckets
            for of_head in of_image
        ]
    ).unflatten(0, qk.shape[:2])
    assert_same_with_gradients(qk, v, lsh_attention(qk, v, rotations, chunk_size), dense_attention(qk, v, mask))


def test_buckets_depend_on_the_direction_alone_and_oppose_each_other() -> None:
    qk, _ = queries_and_values(50)
    rotations = directions(2, 8)
    for bits in (1, 2, 3):
        buckets = angular_buckets(qk, rotations, bits)
        assert torch.equal(angular_buckets(7 * qk, rotations, bits), buckets)
        assert torch.equal(angular_buckets(-qk, rotations, bits), (buckets + 2 ** (bits - 1)) % 2**bits)
    assert angular_buckets(qk, rotations, 11).max() < 2**11


def test_number_of_buckets_follows_the_number_of_tokens() -> None:
    assert [bucket_bits(tokens, 64) for tokens in (1, 64, 65, 128, 129, 784, 6272)] == [0, 0, 2, 2, 3, 5, 8]
