"""What attentions do beyond the formulas of attention_cases.py."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from attention_cases import case, make, queries_and_keys, tokens
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from soft_vit.layers.attention import VQAttention, ssm
from soft_vit.layers.attention.gau import GatedAttentionUnit
from soft_vit.layers.attention.spatial_reduction import SpatialReductionAttention
from soft_vit.ops import inline
from soft_vit.ops.bigbird import bigbird_attention, random_blocks
from soft_vit.ops.landmarks import landmark_tokens
from soft_vit.ops.layout import Layout
from soft_vit.ops.performer import key_exponents, orthogonal_random_features, performer_attention, query_exponents
from soft_vit.ops.reformer import SELF_SCORE, angular_buckets, bucket_bits, lsh_attention

# The gated attention unit in half precision; its formula is in attention_cases.py.


def test_an_average_that_half_precision_holds_needs_no_sum_that_it_does_not() -> None:
    """All tokens alike: the average of their products is 64, and the sum beyond the 65504 of fp16."""
    token = torch.full((1, 1, 8), 8.0, dtype=torch.float16).expand(1, 2000, 8)
    attn = GatedAttentionUnit(4, 1)
    with torch.no_grad():
        # The linear part alone.
        attn.scale.copy_(torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(8, 1).mT)
        x = attn.attend(token, token, Layout((2000, 1)), gate=torch.ones_like(token))
    one, eight = F.silu(torch.tensor([1.0, 8.0]))
    torch.testing.assert_close(x, (one * 8 * eight**3).to(x.dtype).expand_as(x))


# The two ways in which each image convolves its values by its own kernels, and what the kernels are made of.


@pytest.mark.parametrize("large", [1 << 17, 0], ids=["at once", "image by image"])
@pytest.mark.parametrize(("size", "sequence"), [((7, 9), False), ((1, 1), False), ((11, 1), True)])
def test_captured_convolution_equals_the_eager_one(size: tuple[int, int], sequence: bool, large, monkeypatch) -> None:
    """A graph gets sums of shifted maps."""
    monkeypatch.setattr(inline, "LARGE_MAP", large)
    maps = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(2, 3, 3 if sequence else 9, dtype=torch.float64, requires_grad=True)
    results = []
    for captured in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda captured=captured: captured)
        y = inline.convolve_each_image(maps, kernels, sequence)
        results.append([y, *torch.autograd.grad(y.square().sum(), (maps, kernels))])
    for eager, captured in zip(*results, strict=True):
        torch.testing.assert_close(captured, eager, rtol=1e-12, atol=1e-12)


def test_a_mean_that_fp16_holds_needs_no_sum_that_it_does_not() -> None:
    """The sum and the number of these tokens are beyond its 65504."""
    x = torch.full((1, 70000, 2), 4.0, dtype=torch.float16)
    for mask in (None, torch.ones(1, 70000, dtype=torch.bool)):
        assert torch.equal(inline.mean_token(x, mask), torch.full((1, 2), 4.0, dtype=torch.float16))


LANDMARKS = [((56, 56), 8, (7, 7), 49), ((7, 9), 2, None, 12), ((100, 168), 8, (7, 7), 49), ((3, 1), 8, (7, 7), 1)]


@pytest.mark.parametrize("landmarks", ["grid", "segment"])
@pytest.mark.parametrize(("grid", "sr_ratio", "limit", "count"), LANDMARKS)
def test_number_of_landmarks(landmarks, grid, sr_ratio, limit, count: int) -> None:
    x = torch.randn(1, 1, grid[0] * grid[1], 2)
    assert landmark_tokens(x, Layout(grid), sr_ratio, limit, landmarks)[0].shape == (1, 1, count, 2)


def test_map_smaller_than_a_window_is_one_key() -> None:
    attn = SpatialReductionAttention(24, 3, feat_size=(3, 5), sr_ratio=8)
    x = torch.randn(1, 15, 24)
    expected = F.conv2d(F.pad(x.mT.view(1, 24, 3, 5), (0, 3, 0, 5)), attn.sr.weight, attn.sr.bias)
    torch.testing.assert_close(attn.reduce(x, Layout((3, 5))), attn.norm(expected.flatten(2).mT))


# BigBird against dense attention under its block-sparse mask, and the random blocks themselves.


CPU = torch.device("cpu")

# Float64 on both sides, sums of at most some hundred terms in another order: 1e3 roundings of 2.2e-16.
TOLERANCE = 1e-12


def assert_same_with_gradients(x: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    weight = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    results = ((y, *torch.autograd.grad((y * weight).sum(), inputs)) for y in (x, expected))
    for place, (found, value) in enumerate(zip(*results, strict=True)):
        assert (found - value).norm() <= TOLERANCE * value.norm(), place


def dense_mask(tokens: int, heads: int, block_size: int, random: Tensor) -> Tensor:
    """Which tokens see which, `[H, N, N]`, by the random blocks of every head and block, -1 for none."""
    block = torch.arange(tokens) // block_size
    a, b = block[:, None], block
    drawn = (random[:, block][:, :, None] == block[:, None]).any(-1)
    return ((a - b).abs() <= 1) | (torch.minimum(a, b) < 2) | drawn


# The third has fewer blocks than a row of the pattern, the fourth only global ones.
BLOCKS = [(63, 8, 3), (64, 8, 0), (63, 16, 3), (7, 16, 3), (130, 7, 20)]


@pytest.mark.parametrize(("tokens", "block_size", "num_random"), BLOCKS)
def test_equals_dense_attention_under_its_mask(tokens: int, block_size: int, num_random: int) -> None:
    heads, generator = 2, torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, heads, tokens, 8, dtype=torch.float64, generator=generator).unbind(0)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    index, exists = random_blocks(max(3, -(-tokens // block_size)), heads, num_random, CPU)
    mask = dense_mask(tokens, heads, block_size, torch.where(exists, index, -1))
    expected = (q @ k.mT * 8**-0.5).masked_fill(~mask, float("-inf")).softmax(-1) @ v
    assert_same_with_gradients(bigbird_attention(*inputs, block_size, num_random), expected, *inputs)


@pytest.mark.parametrize("num_blocks", [3, 4, 7, 25, 98])
@pytest.mark.parametrize("num_random", [1, 3, 5])
def test_random_blocks_are_others_and_distinct(num_blocks: int, num_random: int) -> None:
    index, exists = random_blocks(num_blocks, 4, num_random, CPU)
    assert index.shape == exists.shape == (4, num_blocks, num_random)
    for head in range(4):
        for block in range(num_blocks):
            others = [b for b in range(2, num_blocks) if abs(b - block) > 1]
            drawn = index[head, block][exists[head, block]].tolist()
            assert len(set(drawn)) == len(drawn) == min(num_random, len(others))
            assert set(drawn) <= set(others)


def test_random_blocks_are_fixed_differ_between_heads_and_are_drawn_about_equally_often() -> None:
    index, _ = random_blocks(52, 16, 1, CPU)
    torch.manual_seed(9)
    assert torch.equal(random_blocks(52, 16, 1, CPU)[0], index)
    assert not torch.equal(index[0], index[1])
    count = torch.bincount(index.flatten(), minlength=52)[2:]
    # Each of 832 draws falls on one of about 48 blocks: 17 times, with a standard deviation of 4.
    assert count.float().std() <= 6
    assert count.max() <= 17 + 5 * 4


def draw(num_features: int, dim: int, seed: int) -> Tensor:
    return orthogonal_random_features(num_features, dim, torch.Generator().manual_seed(seed)).double()


def test_features_are_orthogonal_in_blocks_and_as_long_as_normal_vectors() -> None:
    features = draw(40, 16, 0)
    for block in features.split(16):
        gram = F.normalize(block, dim=-1) @ F.normalize(block, dim=-1).mT
        # Orthogonal to the rounding of an fp32 QR.
        torch.testing.assert_close(gram, torch.eye(len(block), dtype=gram.dtype), rtol=0, atol=1e-5)
    # ||w||^2 of a normal vector has mean d and variance 2 d.
    squares = draw(16000, 16, 1).square().sum(-1)
    assert abs(squares.mean() - 16) < 5 * math.sqrt(2 * 16 / 16000)
    # No direction is preferred: the mean of 16000 normal vectors is within 5 sigma of zero.
    assert draw(16000, 16, 2).mean(0).abs().max() < 5 / math.sqrt(16000)


@pytest.mark.parametrize("scale", [1e-3, 10.0, 1e3])
def test_normaliser_never_vanishes(scale: float) -> None:
    q, k, v = torch.randn(3, 1, 2, 63, 16, generator=torch.Generator().manual_seed(0))
    q, k, projection = scale * q, scale * k, draw(55, 16, 0).float()
    of_q, of_k = query_exponents(q, projection), key_exponents(k, projection)
    of_q = of_q + of_k.amax(2, keepdim=True)
    phi_q, phi_k = (of_q - of_q.amax(-1, keepdim=True)).exp(), (of_k - of_k.amax(2, keepdim=True)).exp()
    assert ((phi_q * phi_k.sum(-2, keepdim=True)).sum(-1) >= 1).all()
    assert performer_attention(q, k, v, projection=projection).abs().max() <= v.abs().max() * (1 + 1e-5)


# Reformer against dense shared-query-key attention under the mask that its hashes stand for.


def directions(rounds: int, dim: int) -> Tensor:
    return torch.randn(rounds, dim, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def queries_and_values(tokens: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    qk, v = torch.randn(2, 2, 3, tokens, 8, dtype=torch.float64, generator=generator).mul(2)
    return qk.requires_grad_(), v.requires_grad_()


def seen_in_rounds(buckets: Tensor, chunk_size: int) -> Tensor:
    """Which tokens each one sees in any round, `[B, H, N, N]`, by buckets `[B, H, R, N]` and the words of the paper."""
    chunk = buckets.argsort(dim=-1, stable=True).argsort(-1) // chunk_size
    ahead = chunk[..., :, None] - chunk[..., None, :]
    return ((buckets[..., :, None] == buckets[..., None, :]) & (ahead >= 0) & (ahead <= 1)).any(2)


def dense_attention(qk: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = qk @ (qk / qk.norm(dim=-1, keepdim=True)).mT
    scores = torch.where(torch.eye(qk.shape[2], dtype=torch.bool), SELF_SCORE, scores)
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


# In the fourth some tokens see no other, in the others one chunk holds all.
CHUNKS = [(63, 16, 3), (130, 64, 4), (64, 16, 2), (40, 3, 1), (63, 63, 1), (63, 64, 3), (63, 1000, 1)]


@pytest.mark.parametrize(("tokens", "chunk_size", "rounds"), CHUNKS)
def test_equals_dense_attention_over_the_union_of_rounds(tokens: int, chunk_size: int, rounds: int) -> None:
    qk, v = queries_and_values(tokens)
    rotations = directions(rounds, 8)
    buckets = angular_buckets(qk, rotations, bucket_bits(tokens, chunk_size))
    mask = seen_in_rounds(buckets, chunk_size)
    assert_same_with_gradients(lsh_attention(qk, v, rotations, chunk_size), dense_attention(qk, v, mask), qk, v)


def test_buckets_depend_on_the_direction_alone_and_oppose_each_other() -> None:
    qk, _ = queries_and_values(50)
    rotations = directions(2, 8)
    for bits in (1, 2, 3):
        buckets = angular_buckets(qk, rotations, bits)
        assert torch.equal(angular_buckets(7 * qk, rotations, bits), buckets)
        assert torch.equal(angular_buckets(-qk, rotations, bits), (buckets + 2 ** (bits - 1)) % 2**bits)
    assert angular_buckets(qk, rotations, 11).max() < 2**11


# Transformer-VQ against dense attention to its quantised keys, and how its codes follow the keys.


CODES, GRID = 5, (5, 7)
CODE_STATE = ("codebook", "key_count", "key_sum")


def make_vq(**options: float) -> VQAttention:
    return make(case("vq", num_codes=CODES, **options), GRID)


def nearest(k: Tensor, codebook: Tensor) -> Tensor:
    """The number of the code `[H, S, D]` nearest to each key `[B, H, N, D]`: `[B, H, N]`."""
    return (k[..., None, :] - codebook[:, None]).square().sum(-1).argmin(-1)


def code_state(attn: VQAttention) -> list[Tensor]:
    return [getattr(attn, name).clone() for name in CODE_STATE]


def test_a_step_of_training_makes_averages_of_keys_the_codes_of_the_next() -> None:
    attn, x = make_vq(decay=0.5).train(), tokens(2, 35)
    attn(x, GRID)
    _, count, total = state = code_state(attn)
    attn.eval()(x, GRID)
    assert all(map(torch.equal, code_state(attn), state))
    attn.train()(x, GRID)
    codebook, (_, k) = attn.codebook, queries_and_keys(attn, x)
    # Codes without keys began again at a key.
    torch.testing.assert_close(codebook, total / count[..., None])
    chosen = F.one_hot(nearest(k, codebook), CODES).to(x.dtype)
    count, total = 0.5 * count + 0.5 * chosen.sum((0, 2)), 0.5 * total + 0.5 * (chosen.mT @ k).sum(0)
    torch.testing.assert_close(attn.key_count, count)
    torch.testing.assert_close(attn.key_sum, total)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(reentrant: bool) -> None:
    """Neither codes, nor how often a key counts, nor what a dropout behind the attention draws."""
    results, again = [], partial(checkpoint, use_reentrant=reentrant)
    for run in (lambda function, x: function(x), again):
        attn = make_vq(proj_drop=0.5).train()
        for step in range(2):
            x = tokens(2, 35, seed=step).requires_grad_()
            run(lambda x, attn=attn: attn(x, GRID), x).square().sum().backward()
        results.append([x.grad, attn.qkv.weight.grad, *code_state(attn)])
    assert all(map(torch.equal, *results))
    views = again(lambda x: attn(x, GRID), x) * again(lambda x: attn(-x, GRID), x)
    with pytest.raises(ValueError, match="a backward after each forward"):
        views.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_masked_keys_do_not_count(dtype: torch.dtype) -> None:
    attn, mask = make_vq(decay=0.0).to(dtype).train(), torch.arange(35) < torch.tensor([[35], [20]])
    attn(x := tokens(2, 35).to(dtype) + 8, GRID, 0, mask)
    code = nearest(queries_and_keys(attn, x)[1].double(), attn.codebook.double()).transpose(1, 2)[mask]
    # A code without keys counts one, with which it begins again.
    expected = torch.stack([row.bincount(minlength=CODES) for row in code.T]).clamp(min=1)
    assert torch.equal(attn.key_count, expected.to(attn.key_count.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [True, False])
def test_compiled_training_learns_the_same_codes(checkpointed: bool) -> None:
    """The recomputation of gradient checkpointing sees buffers that the forward has changed."""
    torch._dynamo.reset()
    results = []
    for compiled in (False, True):
        attn = make_vq().train()
        form = partial(checkpoint, attn, use_reentrant=False) if checkpointed and compiled else attn
        form = torch.compile(form, backend="aot_eager", fullgraph=True) if compiled else form
        torch.manual_seed(1)
        found = []
        for seed in (1, 2):
            x = tokens(2, 35, seed=seed).requires_grad_()
            y = form(x, GRID)
            found += [y.detach(), *torch.autograd.grad(y.square().sum(), x)]
        results.append(found + code_state(attn))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


# The selective scans of few images and channels at a time, without gradients.


@pytest.mark.parametrize("masked", [False, True])
def test_scans_in_parts_are_those_of_all(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(ssm, "CACHED", 0)
    monkeypatch.setattr(ssm, "HIDDEN_SIZE", 0)
    attn, x = ssm.SSMAttention(20, 2, dtype=torch.float64), torch.randn(3, 2 + 9 * 11, 20, dtype=torch.float64)
    mask = torch.ones(3, 2 + 9 * 11, dtype=torch.bool) if masked else None
    if mask is not None:
        mask[1, 2:].view(9, 11)[4:] = False
        mask[2, 2:].view(9, 11)[:, 7:] = False
    whole = attn(x, (9, 11), 2, mask)
    with torch.no_grad():
        parts = attn(x, (9, 11), 2, mask)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
