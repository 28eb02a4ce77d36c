"""Images per second and memory of several models side by side, in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import timm
import torch
from torch import Tensor, nn
from tqdm import tqdm

from soft_vit.analysis.memory import peak_memory
from soft_vit.analysis.naive import naive_formulation
from soft_vit.analysis.timing import check_rounds, spread, time_in_turn
from soft_vit.models.folding import fold_batch_norm

MODES = ("inference", "training")


def checkpointed(model: nn.Module) -> nn.Module:
    """Let a timm model compute its activations again in backward; returns it."""
    model.set_grad_checkpointing()
    return model


VARIANTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": naive_formulation,
    "folded": fold_batch_norm,
    "compiled": torch.compile,
    "checkpointed": checkpointed,
}
"""What a name such as `soft_tiny+naive` makes of the model; a folded one has inference alone."""


@dataclass
class Timing:
    """Images per second of one model in one mode: the median over rounds, and the quartiles; MB of a step, if asked."""

    model: str
    mode: str
    median: float
    lower: float
    upper: float
    memory_mb: float | None = None


def create_variant(name: str, **kwargs: object) -> nn.Module:
    """A timm model by name, with the variants after each `+` applied: `soft_tiny+naive`, `soft_tiny+folded+compiled`.

    Raises ValueError for a model or a variant that there is not.
    """
    model_name, *variants = name.split("+")
    if not timm.is_model(model_name):
        raise ValueError(f"There is no model {model_name}; timm.list_models() lists those there are.")
    if unknown := set(variants) - set(VARIANTS):
        raise ValueError(f"{name} has no variant {min(unknown)}; after a + stand {', '.join(VARIANTS)}.")
    model = timm.create_model(model_name, **kwargs)
    for variant in variants:
        model = VARIANTS[variant](model)
    return model


def measure_throughput(
    names: Sequence[str],
    *,
    batch_size: int = 8,
    img_size: int | tuple[int, int] = 224,
    modes: Sequence[str] = MODES,
    rounds: int = 10,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    memory: bool = False,
    progress: bool = True,
) -> list[Timing]:
    """Time timm models by name, with variants, one step of each in turn, `rounds` times after one round of warm-up.

    training is forward, cross-entropy, backward; inference is a forward pass in inference mode. bf16 and fp16 run under
    autocast. memory: the peak of a step beyond weights and input, by `peak_memory`. Raises ValueError for an unknown
    mode or name, or fewer than 3 rounds.
    """
    if unknown := set(modes) - set(MODES):
        raise ValueError(f"modes={sorted(unknown)} are not known; use some of {', '.join(MODES)}.")
    check_rounds(rounds)
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    images = torch.randn(batch_size, 3, height, width, device=device)
    labels = torch.randint(10, (batch_size,), device=device)
    models = {name: create_variant(name).to(device) for name in names}
    timings = []
    with tqdm(
        total=len(modes) * (rounds + 1) * len(models), disable=not progress, desc="benchmark", leave=False
    ) as bar:
        for mode in modes:
            able = {name: model for name, model in models.items() if mode == "inference" or _trains(model)}
            steps = {name: partial(_STEPS[mode], model, images, labels, dtype) for name, model in able.items()}
            bar.update((len(models) - len(able)) * (rounds + 1))
            for name, seconds in time_in_turn(steps, rounds, device, bar).items():
                rates = spread([batch_size / s for s in seconds])
                peak = peak_memory(steps[name], device) / 2**20 if memory else None
                timings.append(Timing(name, mode, *rates, peak))
                models[name].zero_grad(set_to_none=True)
    return timings


def throughput_table(timings: Sequence[Timing]) -> str:
    """A Markdown table; the ratio column divides by the first model's median in the same mode."""
    memory = any(t.memory_mb is not None for t in timings)
    lines = [
        "| mode | model | images / s | quartiles | ratio |" + " memory (MB) |" * memory,
        "|---" * (5 + memory) + "|",
    ]
    base: dict[str, float] = {}
    for t in timings:
        ratio = t.median / base.setdefault(t.mode, t.median)
        line = f"| {t.mode} | {t.model} | {t.median:.1f} | {t.lower:.1f} - {t.upper:.1f} | {ratio:.2f} |"
        lines.append(line + (f" {t.memory_mb:.0f} |" if t.memory_mb is not None else ""))
    return "\n".join(lines)


def _trains(model: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in model.parameters())


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


_STEPS = {"inference": _inference_step, "training": _training_step}
