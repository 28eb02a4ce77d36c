"""The parts of the report, each a process of its own: tests, the operator at one length, models.

`python -m benchmarks.gpu.parts NAME FILE [--dry]` measures one and writes its figures to FILE as JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.models import measure_throughput, try_steps
from benchmarks.operator import copy_bandwidth, time_forms
from benchmarks.timer import spread, time_in_turn
from benchmarks.variants import naive_soft_attention
from soft_vit.ops import soft_attention
from soft_vit.ops.linear import elu_features, linear_attention
from soft_vit.weights.files import write_atomically

FUSED, EAGER, SOFTMAX = "soft fused", "soft eager", "softmax"
FORMS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    SOFTMAX: lambda q, bottleneck, k, v: F.scaled_dot_product_attention(q, k, v),
    FUSED: lambda q, bottleneck, k, v: soft_attention(q, bottleneck, v, backend="triton"),
    EAGER: lambda q, bottleneck, k, v: soft_attention(q, bottleneck, v, backend="eager"),
    "soft naive": lambda q, bottleneck, k, v: naive_soft_attention(q, bottleneck, v),
    "linear": lambda q, bottleneck, k, v: linear_attention(elu_features(q), elu_features(k), v),
}
"""Forms by name, of q, k and v `[B, H, N, D]` and bottleneck tokens `[B, H, M, D]`."""

GRAPH = "soft fused, CUDA graph"
"""The fused form, forward only, without the time that Python takes to launch it."""

KERNELS = "tests/ops/soft/triton"
SHARDS = ("1/3", "2/3", "3/3")
TESTS, OPERATOR, COMPILED, WARM_UP, GRAPHS, MODELS = "tests: ", "operator: ", "compiled: ", "warm-up", "graph", "models"
"""How names of parts begin, or whole names."""


@dataclass(frozen=True)
class Figure:
    """One measured number with its quartiles; None where the GPU has too little memory.

    what: copy, operator or model; direction: forward or forward+backward, inference or training; size: tokens, or
    images of a batch. memory_mb: the peak beyond inputs or weights. of_floor: the least time, `compulsory_bytes` at the
    bandwidth of a copy, as a fraction of the time measured.
    """

    what: str
    form: str
    direction: str
    size: int
    dtype: str
    unit: str
    median: float | None
    lower: float | None
    upper: float | None
    memory_mb: float | None = None
    of_floor: float | None = None


@dataclass(frozen=True)
class Part:
    """A name, arguments of Python, and the seconds that it may take; together: with others, as nothing is timed."""

    name: str
    arguments: tuple[str, ...]
    seconds: int
    together: bool = False

    @property
    def of_tests(self) -> bool:
        """Whether it runs pytest, and gives no figures."""
        return self.name.startswith(TESTS)


@dataclass(frozen=True)
class Sizes:
    """What is measured; batches: the batch of models by the GiB of memory that it needs."""

    device: str
    batch_size: int
    num_heads: int
    num_bottleneck: int
    head_dim: int
    tokens: tuple[int, ...]
    models: tuple[str, ...]
    compiled: tuple[str, ...]
    img_size: int
    batches: dict[int, int]
    rounds: int


ZOO = ("soft_tiny", "pvt_v2_b1", "swin_tiny_patch4_window7_224", "deit_small_patch16_224")
FULL = Sizes(
    device="cuda",
    batch_size=8,
    num_heads=16,
    num_bottleneck=49,
    head_dim=64,
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
    batch_size=1,
    num_heads=2,
    num_bottleneck=4,
    head_dim=16,
    tokens=(17,),
    models=("soft_pico", "soft_pico+channels_last"),
    compiled=(),
    img_size=32,
    batches={0: 2},
    rounds=3,
)


def tests(name: str, seconds: int, marks: str, *arguments: str) -> Part:
    """A part that runs tests, without the options of pyproject.toml, which need pytest-xdist."""
    options = ("-q", "-o", "addopts=", "--strict-markers", "--import-mode=importlib", "-p", "no:cacheprovider")
    return Part(TESTS + name, ("-m", "pytest", *options, "-m", marks, *arguments), seconds, together=True)


def measurement(name: str, seconds: int, together: bool = False) -> Part:
    """A part of `measure`."""
    return Part(name, ("-m", "benchmarks.gpu.parts", name), seconds, together)


def plan(dry: bool) -> list[Part]:
    """All parts, those of most worth first."""
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


def measure(name: str, sizes: Sizes) -> list[Figure]:
    """The figures of the part of that name."""
    if name.startswith(OPERATOR):
        return measure_operator(int(name.removeprefix(OPERATOR).split()[0]), sizes)
    if name == GRAPHS:
        return [figure for tokens in sizes.tokens for figure in measure_graph(tokens, sizes)]
    if name == WARM_UP:
        # Compiles the kernels of the first models, which takes longer than to time them; Triton keeps them on disk.
        for model in sizes.models[:2]:
            try_steps(model, batch_of(sizes), (sizes.img_size,) * 2, sizes.device, torch.bfloat16)
        return []
    return measure_models((name.removeprefix(COMPILED),) if name != MODELS else sizes.models, sizes)


def compulsory_bytes(form: str, direction: str, v: Tensor) -> int:
    """The bytes of all tensors of N tokens, each read or written once; v: `[B, H, N, D]`.

    Forward reads q and v (and k, which in softmax-free attention is q), and writes x. Between the passes dx is written.
    Backward reads the inputs and dx, and writes gradients of the inputs.
    """
    inputs = 2 if form.startswith("soft ") else 3
    return v.nbytes * (inputs + 1 if direction == "forward" else 3 * inputs + 3)


def operator_inputs(tokens: int, sizes: Sizes) -> list[Tensor]:
    """q, bottleneck tokens, k and v in bf16."""
    scale = sizes.head_dim**-0.25
    lengths = ((tokens, scale), (sizes.num_bottleneck, scale), (tokens, scale), (tokens, 1.0))
    shape = (sizes.batch_size, sizes.num_heads)
    return [(torch.randn(*shape, n, sizes.head_dim, device=sizes.device) * by).bfloat16() for n, by in lengths]


def operator_figure(form: str, direction: str, v: Tensor, bandwidth: float, *measured: float | None) -> Figure:
    """measured: median and quartiles in milliseconds, and MB; bandwidth in GB/s."""
    middle, lower, upper, memory = measured
    floor = compulsory_bytes(form, direction, v) / bandwidth / 1e6
    part = None if middle is None else floor / middle
    return Figure("operator", form, direction, v.shape[2], "bfloat16", "ms", middle, lower, upper, memory, part)


def measure_operator(tokens: int, sizes: Sizes) -> list[Figure]:
    """Every form at one length, called in turn, and the bandwidth of a copy before."""
    *_, v = inputs = operator_inputs(tokens, sizes)
    bandwidth = copy_bandwidth(sizes.device, sizes.rounds)
    figures = [Figure("copy", "copy", "", tokens, "float32", "GB/s", bandwidth, None, None)]
    for direction, form, *measured, _ in time_forms(FORMS, inputs, sizes.rounds, sizes.device):
        figures.append(operator_figure(form, direction, v, bandwidth, *measured))
    return figures


def measure_graph(tokens: int, sizes: Sizes) -> list[Figure]:
    """`GRAPH` at one length."""
    inputs = operator_inputs(tokens, sizes)
    bandwidth = copy_bandwidth(sizes.device, sizes.rounds)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        # Compiles, which a capture forbids.
        FORMS[FUSED](*inputs)
        with torch.cuda.graph(graph):
            FORMS[FUSED](*inputs)
    seconds = time_in_turn({GRAPH: graph.replay}, sizes.rounds, sizes.device)[GRAPH]
    milliseconds = (1e3 * value for value in spread(seconds))
    return [operator_figure(GRAPH, "forward", inputs[-1], bandwidth, *milliseconds, None)]


def batch_of(sizes: Sizes) -> int:
    """The images of a batch for the memory of the GPU."""
    gib = torch.cuda.get_device_properties(0).total_memory / 2**30 if sizes.device == "cuda" else 0
    return max(batch for least, batch in sizes.batches.items() if gib >= least)


def measure_models(names: Sequence[str], sizes: Sizes) -> list[Figure]:
    """Images per second under bf16 autocast, the models called in turn."""
    # As timm's benchmark has it; sizes do not change.
    torch.backends.cudnn.benchmark = True
    options = dict(img_size=sizes.img_size, rounds=sizes.rounds, device=sizes.device, memory=True)
    timings = measure_throughput(names, batch_size=batch_of(sizes), dtype=torch.bfloat16, **options)
    return [
        Figure("model", t.model, t.mode, t.batch_size, "bfloat16", "images/s", t.median, t.lower, t.upper, t.memory_mb)
        for t in timings
    ]


if __name__ == "__main__":
    part, file, *dry = sys.argv[1:]
    figures = measure(part, DRY if dry else FULL)
    write_atomically(file, json.dumps([asdict(figure) for figure in figures]).encode())
