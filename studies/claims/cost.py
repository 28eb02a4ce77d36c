"""Claims about FLOPs, time and memory of single attentions, measured on a CPU."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.atlas.measure import WIDTH, build_attention
from benchmarks.memory import step_memory
from benchmarks.timer import log_log_slope
from soft_vit.layers import ATTENTIONS, PreNormBlock
from soft_vit.layers.reversible import plain_streams, reversible_blocks
from soft_vit.ops.flops import flop_counter
from soft_vit.probe.cost import LiveTensors
from studies.claims.matrices import SOFT
from studies.claims.table import Finding, claim, named, seconds, verdict

# Channels of a head; a layer has two heads.
HEAD_DIM = 32
LINEAR_KINDS = ("soft", "nystrom", "linformer", "performer", "linear")


def megabytes(kind: str, side: int, fused: bool = True, **options: Any) -> float:
    """Return the memory of a training step of one layer with one image, without the weights."""

    def step(attention: nn.Module, x: Tensor) -> None:
        attention.fused_attn = fused
        attention.train()(x, (side, side)).sum().backward()

    build = partial(build_attention, kind, side, HEAD_DIM, **options)
    return step_memory(build, (1, side**2, WIDTH), "cpu", step) / 2**20


def megaflops(kind: str, side: int) -> float:
    """Return the multiply-adds of inference in millions."""
    with torch.device("meta"), flop_counter() as counter:
        build_attention(kind, side, HEAD_DIM, "meta").eval()(torch.empty(1, side**2, WIDTH), (side, side))
    return counter.get_total_flops() / 2e6


@claim(10, f"{SOFT}, Table 2")
def linear_kinds_cost_less() -> Finding:
    """Linear attentions cut FLOPs and memory at equal parameters, today against fused softmax attention too."""
    flops = {kind: megaflops(kind, 56) for kind in LINEAR_KINDS}
    memory = {kind: megabytes(kind, 56) for kind in LINEAR_KINDS}
    dense, fused, plain = megaflops("softmax", 56), megabytes("softmax", 56), megabytes("softmax", 56, fused=False)
    found = f"One attention, width 64, N = 3,136: {dense:.0f} MFLOPs for softmax, {min(flops.values()):.0f} to "
    found += f"{max(flops.values()):.0f} for {', '.join(LINEAR_KINDS)}. Memory of a training step: "
    found += f"softmax {plain:.0f} MB, fused {fused:.0f} MB, {named(memory, '.0f')} MB."
    cheaper = max(flops.values()) < dense / 2 and max(memory.values()) < plain / 2
    return Finding(verdict(max(memory.values()) < fused, cheaper), found)


@claim(12, f"{SOFT}, Table 2")
def speed() -> Finding:
    """SOFT's inference is as fast as that of other linear attentions, its training a little slower."""
    torch.manual_seed(0)
    x = torch.randn(4, 3136, 64)
    modules = {kind: build_attention(kind, 56, HEAD_DIM) for kind in LINEAR_KINDS}

    def infer(module: nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: module.eval()(x, (56, 56)))

    def train(module: nn.Module) -> Callable[[], object]:
        return lambda: module.train()(x, (56, 56)).sum().backward()

    inference = seconds({kind: infer(module) for kind, module in modules.items()})
    training = seconds({kind: train(module) for kind, module in modules.items()})
    others = [kind for kind in modules if kind != "soft"]
    found = "CPU milliseconds of inference and of a training step, four images of N = 3,136: "
    found += ", ".join(f"{kind} {1e3 * inference[kind]:.0f} and {1e3 * training[kind]:.0f}" for kind in modules) + "."
    fast = inference["soft"] < 1.2 * max(inference[kind] for kind in others)
    trains = training["soft"] < 1.5 * max(training[kind] for kind in others)
    return Finding(verdict(fast and trains, fast or trains), found)


@claim(13, f"{SOFT}, figure")
def memory_growth() -> Finding:
    """SOFT's memory grows linearly with the sequence, as released and at test resolution too.

    From 56 x 56 tokens, stage 1 at 224 pixels, to 224 x 224.
    """
    sides, growth = (56, 112, 224), {}
    for name, options in (("released", dict(max_bottleneck=None)), ("capped", {})):
        memory = [megabytes("soft", side, **options) for side in sides]
        pairs = zip(pairwise(side**2 for side in sides), pairwise(memory), strict=True)
        growth[name] = [log_log_slope(*pair) for pair in pairs]
    found = f"Exponent of memory in N, from 56^2 to 112^2 and from there to 224^2 tokens: {growth['released'][0]:.2f} "
    found += f"and {growth['released'][1]:.2f} as released, where one bottleneck token stands for 64 tokens; "
    found += f"{growth['capped'][0]:.2f} and {growth['capped'][1]:.2f} with the number of bottleneck tokens held at 49."
    linear = {name: max(exponents) <= 1.1 for name, exponents in growth.items()}
    return Finding(verdict(all(linear.values()), linear["capped"]), found)


@claim(25, "Reformer, arXiv 2001.04451")
def reversible() -> Finding:
    """Reversible blocks and a chunked feed-forward save memory for the same result."""

    def run(depth: int, reverse: bool, chunks: int, side: int, dtype: torch.dtype) -> tuple[list[Tensor], float]:
        """Return the gradients of the input and of all weights, and the peak memory in megabytes."""
        torch.manual_seed(0)
        attention = partial(ATTENTIONS["softmax"], 32, 2, feat_size=(side, side))
        blocks = [PreNormBlock(32, attention(), mlp_chunks=chunks) for _ in range(depth)]
        modules = nn.ModuleList(blocks).to(dtype)
        x = torch.randn(1, side**2, 32, dtype=dtype, requires_grad=True)
        with LiveTensors() as watch:
            if reverse:
                y = reversible_blocks(blocks, x, (side, side))
            else:
                y = 0.5 * torch.stack(plain_streams(blocks, x, (side, side), 0)).sum(0)
            y.square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in modules.parameters())], watch.peak / 2**20

    exact, _ = run(4, False, 1, 9, torch.float64)
    found, _ = run(4, True, 4, 9, torch.float64)
    error = max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(found, exact, strict=True))
    memory = {
        (depth, reverse): run(depth, reverse, 1, 40, torch.float32)[1] for depth in (4, 16) for reverse in (False, True)
    }
    chunked = run(16, True, 8, 40, torch.float32)[1]
    text = f"Gradients agree to {error:.0e} in float64. Memory of a step with 4 and 16 blocks: plain "
    text += f"{memory[4, False]:.1f} and {memory[16, False]:.1f} MB, reversible {memory[4, True]:.1f} and "
    text += f"{memory[16, True]:.1f} MB; 16 with the feed-forward in 8 chunks as well: {chunked:.1f} MB."
    saves = memory[16, True] < memory[16, False] / 2 and chunked < memory[16, True]
    return Finding(verdict(error < 1e-8 and saves, True), text)
