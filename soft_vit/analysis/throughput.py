"""Images per second and memory of several models side by side, in one process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from soft_vit.analysis.batch_search import START, best_batch_size, default_limit
from soft_vit.analysis.memory import is_out_of_memory, peak_memory, unless_out_of_memory
from soft_vit.analysis.sides import check_batch
from soft_vit.analysis.timing import check_rounds, numbered, spread, time_in_turn
from soft_vit.analysis.variants import create_variant
from soft_vit.text_tables import markdown_table

MODES = ("inference", "training")
SEARCH_ROUNDS = 3

# A mode and the label of a model.
Case = tuple[str, str]


@dataclass
class Timing:
    """Images per second of one model in one mode: the median over rounds, and the quartiles; MB of a step, if asked.

    All figures are None where the device had no memory for a step.
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
    progress: bool = True,
) -> list[Timing]:
    """Time timm models by name, with variants, one step of each in turn, `rounds` times after one round of warm-up.

    A name that is given again is another model, labelled by `numbered`: how far two of one kind differ is what the
    machine adds to a difference of two kinds.

    training is forward, cross-entropy, backward; inference is a forward pass in inference mode. bf16 and fp16 run under
    autocast. batch_size auto: each model in each mode has its own, by `best_batch_size` up to max_batch_size, or up to
    `default_limit`. memory: the peak of a step beyond weights and input, by `peak_memory`; off a GPU not of compiled
    models, whose tensors cannot be watched. Where the device has no memory for a step, its figures are None.

    Raises ValueError for an unknown mode or name, a batch of no image or of more than there is memory for, fewer than 3
    rounds, or a model that fails.
    """
    if unknown := set(modes) - set(MODES):
        raise ValueError(f"modes={sorted(unknown)} are not known; use some of {', '.join(MODES)}.")
    check_rounds(rounds)
    size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    limit = default_limit(device, size) if max_batch_size is None else max_batch_size
    check_batch(limit if batch_size == "auto" else batch_size)
    on_gpu = torch.device(device).type == "cuda"
    variants = numbered(names)
    models = {label: create_variant(variant, size).to(device) for label, variant in variants.items()}
    cases = [(mode, name) for mode in modes for name in models if mode == "inference" or _trains(models[name])]
    if batch_size == "auto":
        batches = _best_batch_sizes(cases, models, limit, size, device, dtype, progress)
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
    with tqdm(total=len(cases) * (rounds + 1), disable=not progress, desc="benchmark", leave=False) as bar:
        for mode in modes:
            steps = {
                name: partial(_step, mode, name, models[name], images[:batch], labels[:batch], dtype)
                for (of_mode, name), batch in batches.items()
                if of_mode == mode and batch is not None
            }
            # The search for a batch has tried what it found.
            able = steps if batch_size == "auto" else {name: step for name, step in steps.items() if _fits(step)}
            seconds = time_in_turn(able, rounds, device, bar)
            for name in (name for of_mode, name in cases if of_mode == mode):
                batch = batches[mode, name]
                if name not in able:
                    timings.append(Timing(name, mode, batch or min(START, limit), None, None, None))
                    bar.update(rounds + 1)
                    continue
                rates = spread([batch / s for s in seconds[name]])
                # To count tensors makes a compiled model run eagerly, which holds more of them.
                counts = memory and (on_gpu or "compiled" not in variants[name].split("+"))
                peak = peak_memory(steps[name], device) / 2**20 if counts else None
                timings.append(Timing(name, mode, batch, *rates, peak))
    return timings


def try_steps(
    name: str, batch_size: int, img_size: tuple[int, int], device: str | torch.device, dtype: torch.dtype
) -> None:
    """One step in each of `MODES` of a model by name, for the errors that `measure_throughput` would end in."""
    model = create_variant(name, img_size).to(device)
    for mode in MODES:
        _step(mode, name, model, *_data(batch_size, img_size, device), dtype)


def _best_batch_sizes(
    cases: Sequence[Case],
    models: Mapping[str, nn.Module],
    limit: int,
    size: tuple[int, int],
    device: str | torch.device,
    dtype: torch.dtype,
    progress: bool,
) -> dict[Case, int | None]:
    """The batch of most images per second of each case, which is alone meanwhile; None where none has memory."""
    batches = {}
    with tqdm(cases, disable=not progress, desc="batch sizes", leave=False) as bar:
        for mode, name in bar:

            def seconds_of_step(batch: int, mode: str = mode, name: str = name) -> float:
                bar.set_postfix_str(f"{name}, {mode}, {batch}")
                # A compiled model meets a limited number of sizes, and is eager from then on.
                torch.compiler.reset()
                step = partial(_step, mode, name, models[name], *_data(batch, size, device), dtype)
                # Other load on the machine only makes a step longer.
                return min(time_in_turn({name: step}, SEARCH_ROUNDS, device)[name])

            batches[mode, name] = best_batch_size(seconds_of_step, limit)
    torch.compiler.reset()
    return batches


def _data(batch_size: int, size: tuple[int, int], device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Images `[B, 3, height, width]` and labels `[B]`."""
    return torch.randn(batch_size, 3, *size, device=device), torch.randint(10, (batch_size,), device=device)


def throughput_table(timings: Sequence[Timing], memory: bool = False) -> str:
    """A Markdown table; the ratio is to the first model's median in the same mode; memory: whether it has a column."""
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
    """Whether the device has memory for a step."""

    def taken() -> bool:
        step()
        return True

    return unless_out_of_memory(taken) is not None


def _trains(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


def _autocast(images: Tensor, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32)


def _step(mode: str, name: str, model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
    """One step of a model; ValueError in the place of what it says of images that it does not take."""
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
        # Also where memory has run out, for a smaller batch.
        model.zero_grad(set_to_none=True)


_STEPS = {"inference": _inference_step, "training": _training_step}
