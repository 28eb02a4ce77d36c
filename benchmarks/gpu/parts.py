"""The parts of the report, each a process of its own: tests, the operator at one length, models.

`python -m benchmarks.gpu.parts NAME FILE [--dry]` measures one and writes its timings to FILE as JSON.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from benchmarks.models import measure_models, try_steps
from benchmarks.operator import copy_timing, make_inputs, measure_operators
from benchmarks.registry import OPERATORS, inputs_of
from benchmarks.timer import Timing, time_in_turn
from soft_vit.weights.files import write_atomically

FUSED, EAGER, SOFTMAX = "newton-triton", "newton-eager", "softmax"
FORMS = (SOFTMAX, FUSED, EAGER, "naive", "linear")
GRAPH = f"{FUSED}, CUDA graph"
"""The fused form, forward only, without the time that Python takes to launch it."""

KERNELS = "tests/ops/soft/triton"
SHARDS = ("1/3", "2/3", "3/3")
TESTS, OPERATOR, COMPILED, WARM_UP, GRAPHS, MODELS = "tests: ", "operator: ", "compiled: ", "warm-up", "graph", "models"
"""How names of parts begin, or whole names."""


@dataclass(frozen=True)
class Part:
    """A name, arguments of Python, and the seconds that it may take; together: with others, as nothing is timed."""

    name: str
    arguments: tuple[str, ...]
    seconds: int
    together: bool = False

    @property
    def of_tests(self) -> bool:
        """Whether it runs pytest, and gives no timings."""
        return self.name.startswith(TESTS)


@dataclass(frozen=True)
class Sizes:
    """What is measured; inputs: options of `make_inputs`; batches: of models, by the GiB of memory that they need."""

    device: str
    inputs: dict[str, int]
    tokens: tuple[int, ...]
    models: tuple[str, ...]
    compiled: tuple[str, ...]
    img_size: int
    batches: dict[int, int]
    rounds: int


ZOO = ("soft_tiny", "pvt_v2_b1", "swin_tiny_patch4_window7_224", "deit_small_patch16_224")
FULL = Sizes(
    device="cuda",
    inputs=dict(batch_size=8, num_heads=16, num_bottleneck=49, head_dim=64),
    # In the order of their worth.
    tokens=(3136, 32768, 12544, 8192, 1024),
    models=tuple(name + form for name in ZOO for form in ("", "+channels_last")),
    compiled=tuple(f"{name}+channels_last+compiled" for name in ZOO),
    img_size=224,
    batches={100: 256, 30: 128, 0: 32},
    rounds=10,
)
DRY = Sizes(
    device="cpu",
    inputs=dict(batch_size=1, num_heads=2, num_bottleneck=4, head_dim=16),
    tokens=(17,),
    models=("soft_pico", "soft_pico+channels_last"),
    compiled=(),
    img_size=32,
    batches={0: 2},
    rounds=3,
)


def tests(name: str, seconds: int, marks: str, *arguments: str) -> Part:
    """Return a part that runs tests, without the options of pyproject.toml, which need pytest-xdist."""
    options = ("-q", "-o", "addopts=", "--strict-markers", "--import-mode=importlib", "-p", "no:cacheprovider")
    return Part(TESTS + name, ("-m", "pytest", *options, "-m", marks, *arguments), seconds, together=True)


def measurement(name: str, seconds: int, together: bool = False) -> Part:
    """Return a part of `measure_part`."""
    return Part(name, ("-m", "benchmarks.gpu.parts", name), seconds, together)


def plan(dry: bool) -> list[Part]:
    """Return all parts, those of most worth first."""
    sizes = DRY if dry else FULL
    of_operator = [measurement(OPERATOR + f"{tokens} tokens", 900 if dry else 90) for tokens in sizes.tokens]
    if dry:
        strides = (f"{KERNELS}/test_newton_inverse.py", "-k", "any_strides")
        return [*of_operator, tests("Newton's inverse", 900, "not slow", *strides), measurement(MODELS, 900)]
    of_kernels = f"{KERNELS}/test_kernels.py"
    return [
        *of_operator,
        # Most of their time goes into compiling.
        *(tests(f"kernels {i}", 200, "gpu and not slow", of_kernels, f"--shard={i}") for i in SHARDS),
        *(tests(f"kernels at size {i}", 200, "gpu and slow", of_kernels, f"--shard={i}") for i in SHARDS),
        tests("operators", 200, "gpu", KERNELS, f"--ignore={of_kernels}"),
        tests("training", 200, "gpu", "tests/gpu"),
        measurement(WARM_UP, 200, together=True),
        measurement(GRAPHS, 60),
        measurement(MODELS, 150),
        *(measurement(COMPILED + name, 120) for name in sizes.compiled),
    ]


def measure_part(name: str, sizes: Sizes) -> list[Timing]:
    """Measure the part of that name."""
    options = dict(rounds=sizes.rounds, device=sizes.device)
    if name == WARM_UP:
        # Compiles the kernels of the first models, which takes longer than to time them; Triton keeps them on disk.
        for model in sizes.models[:2]:
            try_steps(model, batch_of(sizes), (sizes.img_size,) * 2, sizes.device, torch.bfloat16)
        return []
    if name.startswith(OPERATOR):
        tokens = [int(name.removeprefix(OPERATOR).split()[0])]
        timings = measure_operators(FORMS, tokens, **options, **sizes.inputs, dtype=torch.bfloat16)
        return [copy_timing(sizes.device, sizes.rounds), *timings]
    if name == GRAPHS:
        return [copy_timing(sizes.device, sizes.rounds), *(time_graph(tokens, sizes) for tokens in sizes.tokens)]
    return time_models((name.removeprefix(COMPILED),) if name != MODELS else sizes.models, sizes)


def time_graph(tokens: int, sizes: Sizes) -> Timing:
    """Time `GRAPH` at one length."""
    tensors = make_inputs(tokens, **sizes.inputs, device=sizes.device, dtype=torch.bfloat16)
    call = partial(OPERATORS[FUSED], **inputs_of(OPERATORS[FUSED], tensors))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        # Compiles, which a capture forbids.
        call()
        with torch.cuda.graph(graph):
            call()
    return Timing(GRAPH, "forward", tokens, time_in_turn({0: graph.replay}, sizes.rounds, sizes.device)[0])


def batch_of(sizes: Sizes) -> int:
    """Return the images of a batch for the memory of the GPU."""
    gib = torch.cuda.get_device_properties(0).total_memory / 2**30 if sizes.device == "cuda" else 0
    return max(batch for least, batch in sizes.batches.items() if gib >= least)


def time_models(names: Sequence[str], sizes: Sizes) -> list[Timing]:
    """Time models under bf16 autocast, called in turn."""
    # As timm's benchmark has it; sizes do not change.
    torch.backends.cudnn.benchmark = True
    options = dict(img_size=(sizes.img_size,) * 2, rounds=sizes.rounds, device=sizes.device, memory=True)
    return measure_models(names, batch_size=batch_of(sizes), dtype=torch.bfloat16, **options)


if __name__ == "__main__":
    part, file, *dry = sys.argv[1:]
    timings = measure_part(part, DRY if dry else FULL)
    write_atomically(file, json.dumps([asdict(timing) for timing in timings]).encode())
