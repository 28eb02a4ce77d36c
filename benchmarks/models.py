"""Images per second and memory of several models side by side, in one process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.memory import is_out_of_memory, peak_memory, unless_out_of_memory
from benchmarks.timer import MIN_ROUNDS, numbered, require_at_least, spread, time_in_turn
from benchmarks.variants import create_variant
from soft_vit.text_tables import markdown_table

MODES = ("inference", "training")

# The search for the best batch size.
START = 8
SEARCH_ROUNDS = 3
# For images of 224 x 224. At 2048, maps of small models have more elements than 32-bit indices can address.
MOST_ON_GPU = 1024
# Larger batches do not make a CPU faster, and a step takes many seconds.
MOST_ON_CPU = 64
LEAST_GAIN = 1.02

# A mode and a model's label.
Case = tuple[str, str]


@dataclass
class Timing:
    """Images per second of one model in one mode, median and quartiles over rounds, and MB of a step if measured.

    All of them are None if the device has too little memory for a step.
    """

    model: str
    mode: str
    batch_size: int
    median: float | None
    lower: float | None
    upper: float | None
    memory_mb: float | None = None


def measure_throughput(
    names: Sequence[str],
    *,
    batch_size: int | Literal["auto"] = 8,
    max_batch_size: int | None = None,
    img_size: int | tuple[int, int] = 224,
    modes: Sequence[str] = MODES,
    rounds: int = 10,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    memory: bool = False,
) -> list[Timing]:
    """Time timm models by name, with variants: one step of each in turn, for `rounds` rounds after a warm-up.

    A repeated name is a second model, labelled by `numbered`; how much the two differ shows the noise of the machine.

    Training is forward, cross-entropy and backward; inference is a forward pass in inference mode. bf16 and fp16 run
    under autocast. batch_size "auto" gives each model in each mode its own, by `best_batch_size` up to max_batch_size
    or else `default_limit`. memory: also measure the peak of a step beyond weights and input, by `peak_memory`, except
    for compiled models on a CPU, whose tensors cannot be watched.

    Raises ValueError for an unknown mode or name, a batch that is empty or does not fit into memory, fewer than 3
    rounds, or a model that fails.
    """
    if unknown := set(modes) - set(MODES):
        raise ValueError(f"modes={sorted(unknown)} are not known; use some of {', '.join(MODES)}.")
    require_at_least(MIN_ROUNDS, rounds=rounds)
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    limit = default_limit(device, size) if max_batch_size is None else max_batch_size
    require_at_least(1, batch_size=limit if batch_size == "auto" else batch_size)
    on_gpu = torch.device(device).type == "cuda"
    variants = numbered(names)
    models = {label: create_variant(variant, size).to(device) for label, variant in variants.items()}
    cases = [(mode, name) for mode in modes for name in models if mode == "inference" or _trains(models[name])]
    if batch_size == "auto":
        batches = _best_batch_sizes(cases, models, limit, size, device, dtype)
    else:
        batches = dict.fromkeys(cases, batch_size)
    largest = max(filter(None, batches.values()), default=0)
    data = unless_out_of_memory(lambda: _data(largest, size, device))
    if data is None:
        raise ValueError(
            f"{device} has no memory for {largest} images of {size[0]} x {size[1]} pixels; use a smaller batch_size, "
            "or smaller images."
        )
    images, labels = data
    timings = []
    with tqdm(total=len(cases) * (rounds + 1), desc="benchmark", leave=False) as bar:
        for mode in modes:
            steps = {
                name: partial(_step, mode, name, models[name], images[:batch], labels[:batch], dtype)
                for (of_mode, name), batch in batches.items()
                if of_mode == mode and batch is not None
            }
            # The search has already run a step of the batch that it found.
            able = steps if batch_size == "auto" else {name: step for name, step in steps.items() if _fits(step)}
            seconds = time_in_turn(able, rounds, device, bar)
            for name in (name for of_mode, name in cases if of_mode == mode):
                batch = batches[mode, name]
                if name not in able:
                    timings.append(Timing(name, mode, batch or min(START, limit), None, None, None))
                    bar.update(rounds + 1)
                    continue
                rates = spread([batch / s for s in seconds[name]])
                # While tensors are counted, a compiled model runs eagerly and holds more of them.
                counts = memory and (on_gpu or "compiled" not in variants[name].split("+"))
                peak = peak_memory(steps[name], device) / 2**20 if counts else None
                timings.append(Timing(name, mode, batch, *rates, peak))
    return timings


def try_steps(
    name: str,
    batch_size: int,
    img_size: tuple[int, int],
    device: str | torch.device,
    dtype: torch.dtype,
    modes: Sequence[str] = MODES,
) -> None:
    """Run one step of a model in each mode, to raise here what `measure_throughput` would raise."""
    model = create_variant(name, img_size).to(device)
    for mode in modes:
        _step(mode, name, model, *_data(batch_size, img_size, device), dtype)


def default_limit(device: str | torch.device, size: tuple[int, int]) -> int:
    """The largest batch to try: `MOST_ON_CPU`, or on a GPU as many pixels as `MOST_ON_GPU` images of 224 x 224 have."""
    if torch.device(device).type != "cuda":
        return MOST_ON_CPU
    return max(START, min(MOST_ON_GPU, MOST_ON_GPU * 224 * 224 // (size[0] * size[1])))


def best_batch_size(seconds_of_step: Callable[[int], float], limit: int) -> int | None:
    """The batch size with the most images per second among 8, 16, 32 ... up to limit, or a limit below 8 itself.

    seconds_of_step: the duration of a step by batch size. The search ends when doubling the batch gains less than 2 %
    or exceeds the memory. None if even the first batch does.
    """
    rates: dict[int, float] = {}
    batch, previous = min(START, limit), 0.0
    while batch <= limit:
        seconds = unless_out_of_memory(partial(seconds_of_step, batch))
        if seconds is None:
            break
        rate = rates[batch] = batch / seconds
        if rate < LEAST_GAIN * previous:
            break
        batch, previous = 2 * batch, rate
    return max(rates, key=rates.__getitem__, default=None)


def _best_batch_sizes(
    cases: Sequence[Case],
    models: Mapping[str, nn.Module],
    limit: int,
    size: tuple[int, int],
    device: str | torch.device,
    dtype: torch.dtype,
) -> dict[Case, int | None]:
    """The fastest batch size of each case, each measured alone; None if no batch fits into memory."""
    batches = {}
    with tqdm(cases, desc="batch sizes", leave=False) as bar:
        for mode, name in bar:

            def seconds_of_step(batch: int, mode: str = mode, name: str = name) -> float:
                bar.set_postfix_str(f"{name}, {mode}, {batch}")
                # After a limited number of sizes, a compiled model would stay eager.
                torch.compiler.reset()
                step = partial(_step, mode, name, models[name], *_data(batch, size, device), dtype)
                # Other load on the machine can only lengthen a step.
                return min(time_in_turn({name: step}, SEARCH_ROUNDS, device)[name])

            batches[mode, name] = best_batch_size(seconds_of_step, limit)
    torch.compiler.reset()
    return batches


def _data(batch_size: int, size: tuple[int, int], device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Images `[B, 3, height, width]` and labels `[B]`."""
    return torch.randn(batch_size, 3, *size, device=device), torch.randint(10, (batch_size,), device=device)


def throughput_table(timings: Sequence[Timing], memory: bool = False) -> str:
    """A Markdown table with ratios to the first model in the same mode, and a column of memory on request."""
    rows = []
    base: dict[str, float | None] = {}
    for t in timings:
        first = base.setdefault(t.mode, t.median)
        if t.median is None:
            rows.append([t.mode, t.model, t.batch_size, "out of memory", "", "", *[""] * memory])
            continue
        ratio = "" if first is None else f"{t.median / first:.2f}"
        rates = [f"{t.median:.1f}", f"{t.lower:.1f} - {t.upper:.1f}", ratio]
        peak = "not measured" if t.memory_mb is None else f"{t.memory_mb:.0f}"
        rows.append([t.mode, t.model, t.batch_size, *rates, *[peak] * memory])
    header = ["mode", "model", "batch", "images / s", "quartiles", "ratio", *["memory (MB)"] * memory]
    return markdown_table(header, rows)


def _fits(step: Callable[[], None]) -> bool:
    # A step returns None, as unless_out_of_memory does if memory runs out.
    return unless_out_of_memory(lambda: (step(),)) is not None


def _trains(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def _autocast(images: Tensor, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32)


def _step(mode: str, name: str, model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
    """One step of a model; ValueError if it does not take such images."""
    try:
        _STEPS[mode](model, images, labels, dtype)
    except (AssertionError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        height, width = images.shape[-2:]
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{name} fails on images of {height} x {width} pixels ({reason}); leave it out.") from error


def _inference_step(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
    model.eval()
    with torch.inference_mode(), _autocast(images, dtype):
        model(images)


def _training_step(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
    model.train()
    try:
        with _autocast(images, dtype):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
    finally:
        # Even if memory ran out: a smaller batch follows.
        model.zero_grad(set_to_none=True)


_STEPS = {"inference": _inference_step, "training": _training_step}
