"""Measure images per second and memory of timm models, in inference and training."""

import argparse
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import timm
import torch
from torch import Tensor, nn

from benchmarks.memory import is_out_of_memory
from benchmarks.published import published
from benchmarks.registry import VARIANTS, create_variant
from benchmarks.report import Report
from benchmarks.timer import MODES, Spread, Timing, measure, numbered
from soft_vit.cli import add_img_size_option
from soft_vit.layers import ATTENTIONS
from soft_vit.probe.complexity import count_complexity
from soft_vit.text_tables import markdown_table
from soft_vit.weights import load_index

# Side of the square matrices whose product has the peak rate, and its name among the steps.
PEAK_SIDE = 2048
PEAK = "matrix product"
# Operators of a profile.
MAX_OPERATORS = 15


def measure_models(
    names: Sequence[str],
    *,
    batch_size: int = 8,
    img_size: tuple[int, int] = (224, 224),
    modes: Sequence[str] = MODES,
    rounds: int = 10,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    memory: bool = False,
) -> list[Timing]:
    """Time timm models by name, with variants: one step of each in turn, for `rounds` rounds after a warm-up.

    A repeated name is a second model, labelled by `numbered`; the difference of the two shows the noise of the machine.

    Training is forward, cross-entropy and backward; inference is a forward pass in inference mode. bf16 and fp16 run
    under autocast. memory: also measure the peak of a step beyond weights and input, except for compiled models on a
    CPU, which run eagerly while tensors are counted. A product of square matrices takes its turn with the models, to
    relate their FLOPs to its rate.

    Raises ValueError for an unknown name, too few rounds, or a model that fails.
    """
    on_gpu = torch.device(device).type == "cuda"
    variants = numbered(names)
    models = {label: create_variant(name, img_size).to(device) for label, name in variants.items()}
    # As in timm's benchmark: sizes do not change.
    torch.backends.cudnn.benchmark = on_gpu
    counted = [label for label in models if memory and (on_gpu or "compiled" not in variants[label].split("+"))]
    square = torch.randn(PEAK_SIDE, PEAK_SIDE, device=device, dtype=dtype)
    timings = []
    for mode in modes:
        trained = [label for label, model in models.items() if any(x.requires_grad for x in model.parameters())]
        able = trained if mode == "training" else list(models)
        images = partial(torch.randn, batch_size, 3, *img_size, device=device)
        steps = {label: _make_step(mode, label, models[label], images(), dtype) for label in able}
        steps[PEAK] = partial(torch.mm, square, square)
        found = {t.target: t for t in measure(steps, mode, batch_size, rounds, device, counted)}
        peak = PEAK_SIDE**3 / found[PEAK].time.median
        timings += [replace(found[label], peak=peak) for label in able]
    # Last, because a model that fails has raised an error with its name before.
    flops = {label: count_complexity(model, (1, 3, *img_size)).macs for label, model in models.items()}
    return [replace(timing, flops=flops[timing.target]) for timing in timings]


def _make_step(mode: str, name: str, model: nn.Module, images: Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """Return a step on images `[B, 3, H, W]`; it raises ValueError if the model fails on them."""
    labels = torch.randint(10, (len(images),), device=images.device)
    autocast = partial(torch.autocast, images.device.type, dtype=dtype, enabled=dtype != torch.float32)

    def step() -> None:
        model.train(mode == "training")
        try:
            if mode == "training":
                with autocast():
                    loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
            else:
                with torch.inference_mode(), autocast():
                    model(images)
        except (AssertionError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            size, reason = "{} x {}".format(*images.shape[2:]), str(error).partition("\n")[0]
            raise ValueError(f"{name} fails on images of {size} pixels ({reason}).") from error
        finally:
            # Also after running out of memory: a smaller batch follows.
            model.zero_grad(set_to_none=True)

    return step


def profile_table(step: Callable[[], None]) -> str:
    """Return torch's table of the operators that take most of a step's time, without those that they call."""
    step()
    with torch.profiler.profile() as profiler:
        step()
    events = profiler.key_averages()
    # On a GPU, operators take the time of their kernels.
    kind = "device" if any(event.self_device_time_total for event in events) else "cpu"
    table = events.table(sort_by=f"self_{kind}_time_total", row_limit=MAX_OPERATORS, max_name_column_width=40)
    return f"```text\n{table}```"


def row(timing: Timing) -> dict[str, Any]:
    """Return the columns of a CSV file; rates are images per second."""
    figures = dict(zip(Spread._fields, timing.rate or (None,) * 3, strict=True))
    figures |= {"memory_mb": timing.megabytes, "gflops": timing.flops / 1e9, "of_peak": timing.of_peak}
    return {"model": timing.target, "mode": timing.mode, "batch_size": timing.size, **figures}


def models_table(timings: Sequence[Timing], memory: bool = False) -> str:
    """Return a Markdown table with ratios to the first model in the same mode, and a column of memory on request.

    compiled: the rate of the model of that name with `+compiled`, if it is in the table, relative to the model's own.
    """
    rows = []
    base: dict[str, float | None] = {}
    rates = {(timing.mode, timing.target): timing.rate for timing in timings}
    for timing in timings:
        rate, compiled = timing.rate, rates.get((timing.mode, f"{timing.target}+compiled"))
        first = base.setdefault(timing.mode, rate and rate.median)
        cells = ["out of memory", *[""] * (5 + memory)]
        if rate:
            ratio = "" if first is None else f"{rate.median / first:.2f}"
            peak = "not measured" if timing.megabytes is None else f"{timing.megabytes:.0f}"
            cells = [*rate.cells(".1f"), ratio, f"{timing.flops / 1e9:.2f}", f"{timing.of_peak:.2f}"]
            cells += [f"{compiled.median / rate.median:.2f}" if compiled else "", *[peak] * memory]
        rows.append([timing.mode, timing.target, timing.size, *cells])
    header = ["mode", "model", "batch", "images / s", "quartiles", "ratio", "GFLOPs", "of_peak", "compiled"]
    header += ["memory (MB)"] * memory
    return markdown_table(header, rows)


def published_names(most: float, size: tuple[int, int]) -> list[str]:
    """Return the models with a published accuracy or recorded weights, of at most this many parameters.

    Those that refuse the size (H, W) are left out. Those of SOFT have `+capped`.
    """
    names = []
    for name in dict.fromkeys([*published(), *(entry.model for entry in load_index())]):
        parameters = timm.create_model(name, device="meta").parameters()
        if sum(parameter.numel() for parameter in parameters) <= most:
            label = name + "+capped" * name.startswith("soft_")
            model = create_variant(label, size, device="meta").eval()
            with contextlib.suppress(AssertionError), torch.no_grad():
                model(torch.empty(1, 3, *size, device="meta"))
                names.append(label)
    return names


def add_options(parser: argparse.ArgumentParser) -> None:
    variants = ", ".join(f"+{name}" for name in VARIANTS if name not in ATTENTIONS) + " or an attention type"
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("models", nargs="*", default=[], metavar="MODEL", help=f"names, with {variants}; the first is 1")
    text = "all with an accuracy or weights, up to M million parameters"
    what.add_argument("--published", type=float, metavar="M", help=text)
    parser.add_argument("--batch-size", type=int, default=8, metavar="B", help="(default: %(default)s)")
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="(default: both)")
    parser.add_argument("--memory", action="store_true", help="measure the peak memory of a step as well")
    parser.add_argument("--profile", action="store_true", help="add tables of the operators of a step")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    dtype, size = getattr(torch, args.dtype), "{} x {}".format(*args.img_size)
    names = args.models if args.published is None else published_names(args.published * 1e6, args.img_size)
    how = dict(modes=args.modes, rounds=args.rounds, device=args.device, dtype=dtype, memory=args.memory)
    timings = measure_models(names, batch_size=args.batch_size, img_size=args.img_size, **how)
    tables = [models_table(timings, args.memory)]
    for timing in timings if args.profile else ():
        if timing.seconds:
            model = create_variant(timing.target.partition(" (")[0], args.img_size).to(args.device)
            images = torch.randn(timing.size, 3, *args.img_size, device=args.device)
            table = profile_table(_make_step(timing.mode, timing.target, model, images, dtype))
            tables.append(f"## {timing.target}, {timing.mode}, batch {timing.size}\n\n{table}")
    words = f"{size}, {args.dtype}. Medians and quartiles over rounds, in which the models of a table take turns; each "
    words += "runs twice, and the second time counts. GFLOPs are those of an image's forward, one for a multiply-add; "
    words += f"of_peak relates them, or three times as many in training, to a product of {PEAK_SIDE} x {PEAK_SIDE}."
    return Report("Speed of models", words, tables, list(map(row, timings)), {"case": size, "dtype": args.dtype})
