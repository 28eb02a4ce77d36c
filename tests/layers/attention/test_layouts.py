"""Sequences, prefix tokens and masks: every attention against the valid tokens alone, or a dense formula."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_cases import (
    CASES,
    DIM,
    FORMULAS,
    Case,
    Size,
    case,
    every,
    heads,
    make,
    output_by,
    relative_error,
    tokens,
    turned,
    using,
)
from torch import Tensor, nn

from soft_vit.layers import ATTENTIONS
from soft_vit.probe.attentions import replaced_attend

# Float64 on both sides; an inverse of a kernel with a ridge of 0.01 enlarges roundings by at most 1e2.
TOLERANCE = 1e-10

NO_MASK = [
    (case("linformer"), (20,), "positions"),
    (case("synthesizer"), (20,), "positions"),
    (case("polaformer"), (20,), "positions"),
    (case("longformer"), (20,), "global tokens"),
    (case("bigbird"), (20,), "number of tokens"),
    (case("reformer"), (20,), "number of tokens"),
    (case("sparse"), (20,), "dilation"),
    (case("soft", sampling="first"), (20,), "sampling"),
    (case("spatial_reduction", linear=True), (20,), "49 windows"),
    (case("rwkv"), (20,), "number of tokens"),
    (case("mlstm", conv1d=True), (4, 5), "end of a row"),
    *((case(kind), (4, 5), "sequence") for kind in ("soft", "nystrom", "agent", "skyformer")),
]


def masks(use: str, prefix: int) -> tuple[tuple[int, ...], Tensor, list[tuple[int, ...]]]:
    """A map, a mask of its tokens, and the maps of the tokens that are left."""
    if use == "maps":
        # Some are thinner than a window of two by two.
        feat_size, shorter = (7, 5), [(7, 5), (4, 5), (4, 3), (7, 1), (1, 5), (1, 1)]
        mask = torch.zeros(len(shorter), prefix + 7 * 5, dtype=torch.bool)
        mask[:, :prefix] = True
        for image, (height, width) in zip(mask[:, prefix:].view(-1, 7, 5), shorter, strict=True):
            image[:height, :width] = True
    else:
        mask = torch.ones(6, prefix + 23, dtype=torch.bool)
        mask[1, [prefix + 3, prefix + 9, prefix + 20]] = False
        mask[2, prefix::3] = False
        mask[3, prefix : prefix + 7] = False
        mask[4, prefix + 5 :] = False
        mask[5, prefix : prefix + 22] = False
        feat_size, shorter = (23,), [(23,), (20,), (15,), (16,), (5,), (1,)]
    mask[2, : prefix // 2] = False
    return feat_size, mask, shorter


@pytest.mark.parametrize(("use", "case"), [(use, case) for use in ("masks", "maps") for case in using(use)], ids=str)
def test_tokens_may_be_masked(use: str, case: Case) -> None:
    """Results and gradients of the valid tokens are those of these tokens alone, whatever the others are."""
    for prefix in (0, 2):
        feat_size, mask, shorter = masks(use, prefix)
        attn, x = make(case, feat_size), tokens(*mask.shape)
        x[~mask] = torch.tensor([float("nan"), float("inf")]).repeat(DIM // 2).to(x.dtype)
        x.requires_grad_()
        weight = torch.randn(x.shape, dtype=x.dtype)
        y = attn(x, feat_size, prefix, mask)
        assert y.isfinite().all()
        grad, *grads = torch.autograd.grad((y * weight)[mask].sum(), [x, *attn.parameters()])
        assert not grad[~mask].any()
        assert all(value.isfinite().all() for value in grads)
        if use == "masks" and not prefix:
            ends = F.pad(mask.sum(1).cumsum(0), (1, 0))
            assert relative_error(attn.packed(x[mask], ends), y[mask]) <= 10 * TOLERANCE
        for image, size in enumerate(shorter):
            keep = mask[image]
            alone = x.detach()[image : image + 1, keep].requires_grad_()
            expected = attn(alone, size, int(keep[:prefix].sum()))
            (expected_grad,) = torch.autograd.grad((expected * weight[image, keep]).sum(), alone)
            # Newton's steps leave 1e-9 of the inverse that a bottleneck token alone has exactly.
            assert relative_error(y[image, keep], expected[0]) <= 10 * TOLERANCE, image
            assert relative_error(grad[image, keep], expected_grad[0]) <= 10 * TOLERANCE, image


def test_tokens_beyond_padding_of_a_map_are_refused() -> None:
    for row in using("maps"):
        for hole in ((0, 0), (3, 2), (6, 3)):
            mask = torch.ones(1, 7, 5, dtype=torch.bool)
            mask[0, hole[0], hole[1]] = False
            with pytest.raises(ValueError, match="key_padding_mask"):
                make(row, (7, 5))(tokens(1, 35), (7, 5), 0, mask.flatten(1))


@every(using("masks"))
def test_prefix_tokens_alone_may_count(case: Case) -> None:
    attn, x = make(case, (9,)), tokens(2, 11).requires_grad_()
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[1, 2:] = False
    y = attn(x, (9,), 2, mask)
    assert y.isfinite().all()
    (grad,) = torch.autograd.grad(y[mask].sum(), x)
    assert grad.isfinite().all()
    assert not grad[~mask].any()


def test_every_attention_takes_a_mask_or_names_the_reason() -> None:
    refusing = {case.kind for case, *_ in NO_MASK}
    assert {case.kind for case in using("masks")} | refusing == ATTENTIONS.keys()
    for refused, feat_size, reason in NO_MASK:
        with pytest.raises(ValueError, match=reason):
            make(refused, feat_size)(tokens(1, 20), feat_size, 0, torch.ones(1, 20, dtype=torch.bool))


def test_without_a_grid_prefix_tokens_are_as_all_others() -> None:
    x = tokens(2, 38)
    for kind, cls in ATTENTIONS.items():
        on_map, in_sequence = make(case(kind), (5, 7)), make(case(kind), (38,))
        assert cls.traits.needs_grid or torch.equal(on_map(x, (5, 7), 3), in_sequence(x, (38,))), kind


def ttt(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The inner models trained by autograd, each image's on its own, with losses as the paper states them."""

    def unit(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return (x @ w1) * F.silu(x @ w2)

    def convolution(x: Tensor, w3: Tensor) -> Tensor:
        return F.conv2d(x, w3, padding=(1, w3.shape[3] // 2), groups=len(w3))

    results = []
    for tokens_of_image in attn.qkv(x).split(1):
        q, k, v = (part.contiguous() for part in tokens_of_image[..., : 3 * DIM].chunk(3, dim=-1))
        if attn.rope:
            q, k = turned(q, prefix, feat_size), turned(k, prefix, feat_size)
        q, k, v = heads(q), heads(k), heads(v)
        inner_loss = -(unit(k, attn.w1, attn.w2) * v).sum(-1).mean(-1).sum() / 3
        steps = torch.autograd.grad(inner_loss, (attn.w1, attn.w2), create_graph=True)
        inner = (w - g / (g.norm(dim=-2, keepdim=True) + 1) for w, g in zip((attn.w1, attn.w2), steps, strict=True))
        gated = unit(q, *inner)
        maps = tokens_of_image[:, prefix:, 3 * DIM :].mT.unflatten(2, feat_size).chunk(3, dim=1)
        inner_loss = -(convolution(maps[1], attn.w3) * maps[2]).sum() / 3 / (feat_size[0] * feat_size[1])
        (g,) = torch.autograd.grad(inner_loss, attn.w3, create_graph=True)
        y = convolution(maps[0], attn.w3 - g / (g.norm(dim=(2, 3), keepdim=True) + 1))
        y = F.pad(y.flatten(2).mT, (0, 0, prefix, 0))
        results.append(torch.cat([gated.transpose(1, 2).flatten(2), y], dim=-1))
    return attn.proj(torch.cat(results))


def prepared(x: Tensor, conv: nn.Conv2d, key_norm: bool, prefix: int, feat_size: Size) -> Tensor:
    """Queries or keys `[B, N, C]`, each channel normalised over the tokens, plus their convolution on the map."""
    if key_norm:
        x = F.instance_norm(x.mT, eps=1.0).mT
    maps = x[:, prefix:].mT.unflatten(2, feat_size)
    maps = F.conv2d(maps, conv.weight, padding=(1, conv.weight.shape[3] // 2), groups=DIM)
    return heads(x + F.pad(maps.flatten(2).mT, (0, 0, prefix, 0)))


def ttt_glu(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """The inner models trained by autograd, each image's on its own."""

    def unit(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        return (F.silu(x @ w1) * (x @ w2)) @ w3

    weights, results = (attn.w1, attn.w2, attn.w3), []
    for image in attn.qkv(x).split(1):
        q, k, v = image.chunk(3, dim=-1)
        q, k = prepared(q, attn.q_conv, False, prefix, feat_size), prepared(k, attn.k_conv, True, prefix, feat_size)
        loss = -(unit(k, *weights) * heads(v)).sum() / (x.shape[1] * attn.head_dim**0.5)
        steps = torch.autograd.grad(loss, weights, create_graph=True)
        results.append(unit(q, *(w - step for w, step in zip(weights, steps, strict=True))))
    return attn.proj(torch.cat(results).transpose(1, 2).flatten(2))


OPTIONS = {"key_norm": "instance", "qk_conv": True}


@pytest.mark.parametrize("kind", ["softmax", "performer", "focused", "mala", "gaussian"])
def test_options_of_queries_and_keys(kind: str) -> None:
    """What `attend` is given, against a plain attention on queries and keys that are normalised and convolved here."""
    for feat_size, prefix in (((5, 7), 3), ((23,), 0)):
        attn, plain = make(case(kind, **OPTIONS), feat_size), make(case(kind), feat_size)
        weights = attn.state_dict()
        plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
        grid = feat_size if len(feat_size) == 2 else (*feat_size, 1)
        x, seen = tokens(2, prefix + grid[0] * grid[1]), {}
        for name, module in (("found", attn), ("plain", plain)):
            with replaced_attend(module, partial(record, module.attend, seen, name)):
                module(x, feat_size, prefix)
        flat = [part.transpose(1, 2).flatten(2) for part in seen["plain"]]
        expected = [prepared(flat[0], attn.q_conv, attn.traits.key_is_query, prefix, grid)]
        if not attn.traits.key_is_query:
            expected.append(prepared(flat[1], attn.k_conv, True, prefix, grid))
        for found, value in zip(seen["found"][: len(expected)], expected, strict=True):
            assert relative_error(found, value) <= TOLERANCE, feat_size


def record(attend: Callable[..., Tensor], seen: dict[str, Any], name: str, *args: Any) -> Tensor:
    seen[name] = args[:2]
    return attend(*args)


def test_options_of_queries_and_keys_are_refused_without_them() -> None:
    for kind in ("none", "gau", "synthesizer", "longformer", "spatial_reduction", "wfm", "vssd"):
        for name, value in OPTIONS.items():
            with pytest.raises(ValueError, match=name):
                make(case(kind, **{name: value}), (4, 5))
    with pytest.raises(ValueError, match="batch"):
        make(case("linear", key_norm="batch"), (4, 5))
    with pytest.raises(ValueError, match="context"):
        make(case("linear", **OPTIONS), (20,))(tokens(1, 20), (20,), context=tokens(1, 20))


def wfm(attn: Any, x: Tensor, prefix: int, feat_size: Size) -> Tensor:
    """Image by image, and token by token of what the weights are made from."""
    conv, linear, (Y, X) = attn.conv, attn.linear, feat_size
    results = []
    for tokens_of_image in x:
        grid = tokens_of_image[prefix:].unflatten(0, feat_size)
        cells = [
            grid[i * Y // 3 : -(-(i + 1) * Y // 3), j * X // columns : -(-(j + 1) * X // columns)].mean((0, 1))
            for columns in [conv.w.shape[3]]
            for i in range(3)
            for j in range(columns)
        ]
        first, last = (conv.wfm[i].weight[:, :, 0, 0] for i in (0, 2))
        g = torch.stack([last @ F.gelu(first @ cell + conv.wfm[0].bias) for cell in cells], dim=1)
        kernels = conv.w + (g / (1 + g.norm(dim=1, keepdim=True))).view_as(conv.w)
        local = F.conv2d(grid.movedim(2, 0)[None], kernels, conv.b, padding=(1, kernels.shape[3] // 2), groups=DIM)[0]
        grid = grid + local.movedim(0, 2)
        M = torch.zeros(DIM, DIM, dtype=x.dtype)
        height, width = 2, min(2, conv.w.shape[3])
        for i in range(Y // height):
            for j in range(X // width):
                window = grid[i * height : (i + 1) * height, j * width : (j + 1) * width]
                k, v = F.silu(linear.wfm(window.mean((0, 1)))).chunk(2)
                M = M + torch.outer(k @ linear.w1, v @ linear.w2) / DIM**0.5 / (Y * X)
        tokens_here = torch.cat([tokens_of_image[:prefix], grid.flatten(0, 1)])
        W = linear.w + M / (1 + M.norm(dim=0))
        results.append(attn.proj(F.gelu(tokens_here @ W + linear.b)))
    return torch.stack(results)


WITHOUT_MATRIX = {"ttt": ttt, "ttt_glu": ttt_glu, "wfm": wfm}


@every([*FORMULAS, case("ttt"), case("ttt", rope=True), case("ttt_glu"), case("wfm")])
def test_equals_the_dense_formula(case: Case) -> None:
    """The result and all gradients."""
    for feat_size, prefix in (((5, 7), 3), ((23,), 0), ((23,), 2)):
        attn, grid = make(case, feat_size), feat_size if len(feat_size) == 2 else (*feat_size, 1)
        x, results = tokens(2, prefix + grid[0] * grid[1]).requires_grad_(), []
        arguments = attn, x, prefix, grid
        expected = (
            output_by(case.formula(*arguments), *arguments) if case.formula else WITHOUT_MATRIX[case.kind](*arguments)
        )
        for y in (attn(x, feat_size, prefix), expected):
            results.append([y, *torch.autograd.grad(y.square().sum(), [x, *attn.parameters()])])
        for found, value in zip(*results, strict=True):
            # Some gradients are zero, such as that of a bias that no softmax depends on.
            assert (found - value).norm() <= TOLERANCE * value.norm().clamp(min=1), (feat_size, prefix)


def test_every_attention_with_a_rule_for_prefix_tokens_has_a_formula() -> None:
    assert {case.kind for case in FORMULAS} | WITHOUT_MATRIX.keys() >= {
        kind for kind, cls in ATTENTIONS.items() if cls.traits.needs_grid
    }


def test_cost_is_that_of_the_options() -> None:
    for row in CASES:
        assert not row.cost or row.cost == make(row, (8, 8)).traits.cost, row


def test_what_does_not_fit_is_named() -> None:
    """Each in one sentence."""
    attn, in_sequence, x = make(case("linear"), (4, 5)), make(case("linear"), (20,)), tokens(2, 20)
    full = torch.ones(2, 20, dtype=torch.bool)
    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: attn(x, (4, 4)), "(2, 20, 12)"),
        (lambda: attn(x, (4, 5), 1), "1 prefix tokens"),
        (lambda: attn(x, (20,)), "(H, W), got (20,)"),
        (lambda: in_sequence(x, (5,)), "(2, 20, 12)"),
        (lambda: ATTENTIONS["linear"](DIM, 5, feat_size=(20,)), "got 5 heads"),
        (lambda: in_sequence(x, (20,), 0, full[:, :19]), "(2, 19)"),
        (lambda: in_sequence(x, (20,), 0, full.float()), "torch.float32"),
        (lambda: in_sequence(x, (20,), 0, full & torch.tensor([[True], [False]])), "True in each row"),
    ]
    for mistake, words in mistakes:
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            mistake()
        assert re.fullmatch(r"[^\n]*\.", str(caught.value))
