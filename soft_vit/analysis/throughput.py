"""Throughput of several models side by side, in one process, so that a machine's moods reach all of them alike."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import timm
import torch
from torch import Tensor, nn
from tqdm import tqdm

MODES = ("inference", "training")


@dataclass
class Timing:
    """Images per second of one model in one mode: the median over rounds, and the quartiles."""

    model: str
    mode: str
    median: float
    lower: float
    upper: float


def measure_throughput(
    names: Sequence[str],
    *,
    batch_size: int = 8,
    img_size: int | tuple[int, int] = 224,
    modes: Sequence[str] = MODES,
    rounds: int = 10,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: bool = True,
) -> list[Timing]:
    """Time timm models by name, one step of each in turn, `rounds` times after one round of warm-up.

    training is forward, cross-entropy, backward; inference is a forward pass in inference mode. bf16 and fp16 run under
    autocast. Raises ValueError for an unknown mode or fewer than 3 rounds.
    """
    if unknown := set(modes) - set(MODES):
        raise ValueError(f"modes={sorted(unknown)} are not known; use some of {', '.join(MODES)}.")
    if rounds < 3:
        raise ValueError(f"rounds={rounds} give no spread; use at least 3.")
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    images = torch.randn(batch_size, 3, height, width, device=device)
    labels = torch.randint(10, (batch_size,), device=device)
    models = {name: timm.create_model(name).to(device) for name in names}
    steps = {"inference": _inference_step, "training": _training_step}

    timings = []
    with tqdm(
        total=len(modes) * (rounds + 1) * len(models), disable=not progress, desc="benchmark", leave=False
    ) as bar:
        for mode in modes:
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for round_index in range(rounds + 1):
                for name, model in models.items():
                    elapsed = seconds_of(
                        lambda model=model, mode=mode: steps[mode](model, images, labels, dtype), device
                    )
                    if round_index:
                        seconds[name].append(elapsed)
                    bar.update()
            for name in names:
                rates = [batch_size / s for s in seconds[name]]
                lower, _, upper = quantiles(rates, n=4)
                timings.append(Timing(name, mode, median(rates), lower, upper))
    return timings


def throughput_table(timings: Sequence[Timing]) -> str:
    """A Markdown table; the ratio column divides by the first model's median in the same mode."""
    lines = ["| mode | model | images / s | quartiles | ratio |", "|---|---|---|---|---|"]
    base = {}
    for t in timings:
        base.setdefault(t.mode, t.median)
        ratio = t.median / base[t.mode]
        lines.append(f"| {t.mode} | {t.model} | {t.median:.1f} | {t.lower:.1f} - {t.upper:.1f} | {ratio:.2f} |")
    return "\n".join(lines)


def machine_description(device: str | torch.device = "cpu") -> str:
    """Device, threads and versions, for the head of a table."""
    device = torch.device(device)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"
    return f"{name}; torch {torch.__version__}, timm {timm.__version__}, Python {platform.python_version()}"


def seconds_of(step: Callable[[], None], device: str | torch.device) -> float:
    """Seconds of a step, with what it leaves to a GPU."""
    synchronize = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    synchronize()
    start = time.perf_counter()
    step()
    synchronize()
    return time.perf_counter() - start


def _autocast(images: Tensor, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32)


def _inference_step(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
    model.eval()
    with torch.inference_mode(), _autocast(images, dtype):
        model(images)


def _training_step(model: nn.Module, images: Tensor, labels: Tensor, dtype: torch.dtype) -> None:
    model.train()
    model.zero_grad(set_to_none=True)
    with _autocast(images, dtype):
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
