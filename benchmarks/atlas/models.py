"""Models in the columns of timm's benchmark results: step times in milliseconds, images per second, and sizes."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from tqdm import tqdm

from benchmarks.atlas.table import InferRow, TrainRow, steadiness
from benchmarks.models import MODES, START, Timing, measure_throughput, try_steps
from benchmarks.variants import create_variant
from soft_vit.models.eval_mode import eval_mode
from soft_vit.probe.complexity import count_complexity
from soft_vit.text_tables import error_cell

# The smallest model of each family, after models with softmax attention of about their size.
MODELS = (
    *("deit_small_patch16_224", "swin_tiny_patch4_window7_224", "pvt_v2_b1"),
    *("soft_tiny+capped", "soft_norm_tiny+capped", "soft_plus_tiny+capped", "flatten_pvt_tiny", "pola_pvt_tiny"),
    *("inline_deit_tiny", "inline_pvt_tiny", "ravlt_t", "mavit_t", "mlla_tiny", "vittt_tiny", "h_vittt_tiny"),
)
SIZES = ((224, 224), (512, 512), (800, 1333))
FORMS = ("eager", "compiled")
Batch = Literal[1, "auto"]
BATCHES: tuple[Batch, ...] = (1, "auto")
ROUNDS = 7

aten = torch.ops.aten
PRODUCTS = {aten.convolution, aten.mm, aten.addmm, aten.bmm, aten.baddbmm}


def check_models(names: Sequence[str]) -> None:
    """ValueError for an unknown model or variant."""
    for name in names:
        create_variant(name, device="meta")


def measure_models(
    names: Sequence[str],
    infer: Sequence[InferRow],
    train: Sequence[TrainRow],
    *,
    sizes: Sequence[tuple[int, int]] = SIZES,
    forms: Sequence[str] = FORMS,
    batches: Sequence[Batch] = BATCHES,
    max_batch_size: int | None = None,
    rounds: int = ROUNDS,
    device: str = "cpu",
) -> Iterator[tuple[list[InferRow], list[TrainRow]]]:
    """Measure what the rows lack, all models of a case in turn; yields all rows after each case.

    A batch "auto" is the fastest of 8, 16 ... up to max_batch_size. A model that fails at a size has rows that say so.
    """
    infer, train = list(infer), list(train)
    yield infer, train
    with tqdm(list(product(sizes, forms, batches)), desc="models", unit="case") as bar:
        for size, form, batch in bar:
            shown = f"{size[0]}x{size[1]}" if size[0] != size[1] else f"{size[0]}"
            bar.set_postfix_str(f"{shown}, {form}, batch {batch}")
            have = {
                row.model
                for row in infer
                if (row.infer_img_size, row.form) == (shown, form) and (row.infer_batch_size == 1) == (batch == 1)
            }
            missing = [name for name in names if name not in have]
            failed = {case: why for case in product(missing, MODES) if (why := _failure(*case, size, device))}
            timings = []
            for mode in MODES:
                able = [name for name in missing if (name, mode) not in failed]
                if able:
                    timings += measure_throughput(
                        [f"{name}+compiled" if form == "compiled" else name for name in able],
                        batch_size=batch,
                        max_batch_size=max_batch_size if batch == "auto" else None,
                        img_size=size,
                        modes=[mode],
                        rounds=rounds,
                        device=device,
                    )
            timings += [Timing(*case, 1 if batch == 1 else START, None, None, None) for case in failed]
            for timing in timings:
                name = timing.model.removesuffix("+compiled")
                figures = _figures(timing)
                note = failed.get((name, timing.mode)) or _note(timing)
                sizes = (None, None, None) if (name, "inference") in failed else sizes_of(name, size)
                if timing.mode == "inference":
                    row = (shown, *figures[:2], timing.batch_size, *sizes)
                    infer.append(InferRow(name, *row, form, *figures[2:], note))
                else:
                    row = (*figures[:2], timing.batch_size, shown, sizes[0])
                    train.append(TrainRow(name, *row, form, *figures[2:], note))
            yield infer, train


def _failure(name: str, mode: str, size: tuple[int, int], device: str) -> str:
    """Why a model cannot take images of a size in a mode, or ""."""
    try:
        try_steps(name, 1, size, device, torch.float32, modes=(mode,))
    except Exception as error:
        # A failure of one model is a result and does not end the others.
        return error_cell(error)
    return ""


def _figures(timing: Timing) -> tuple[float | None, float | None, float | None, float | None]:
    """Images per second, milliseconds of a step, and quartiles of the first."""
    if timing.median is None:
        return None, None, None, None
    return timing.median, 1e3 * timing.batch_size / timing.median, timing.lower, timing.upper


def _note(timing: Timing) -> str:
    return "out of memory" if timing.median is None else steadiness(timing.lower, timing.median, timing.upper)


@cache
def sizes_of(name: str, size: tuple[int, int]) -> tuple[float, float, float]:
    """Millions of parameters, billions of multiply-adds, and millions of activations of one image.

    Activations are counted as by fvcore, whose figures timm shows: the outputs of convolutions, linear layers and
    products of matrices; fused attention counts as its two products.
    """
    # The published counts are of the model as it is, without the compiler.
    model = create_variant(name, size, device="meta")
    complexity = count_complexity(model, (1, 3, *size))
    with Activations() as activations, eval_mode(model), torch.no_grad():
        model(torch.empty(1, 3, *size, device="meta"))
    return complexity.params / 1e6, complexity.macs / 1e9, activations.count / 1e6


class Activations(TorchDispatchMode):
    """Counts the outputs of convolutions and of products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket in PRODUCTS:
            self.count += out.numel()
        elif "scaled_dot_product" in function.__name__:
            q, k, v = args[:3]
            self.count += math.prod(q.shape[:-1]) * (k.shape[-2] + v.shape[-1])
        return out
