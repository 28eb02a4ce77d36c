"""What a training step costs beyond forward, backward and the optimizer."""

import copy
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch
from mmengine.hooks import EMAHook
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop
from tqdm import tqdm

from soft_vit.engine.errors import UserError
from soft_vit.engine.run import train
from soft_vit.text_tables import markdown_table

__all__ = ["StepOverhead", "measure_step_overhead", "overhead_table"]

BARE, PLAIN, FULL = "forward, backward, optimizer", "step without EMA", "step"
# More than any measurement takes, so that no epoch ends within one.
_BATCHES = 10_000
_RESULT = "overhead.json"
# Parts that take fewer seconds a step than this share one row of the table.
_SMALL = 1e-5
_WARM_UP = 2


@dataclass
class StepOverhead:
    """Seconds of each kind of step, in the order of the rounds, and of parts of the whole step.

    parts: sums of what lies beyond forward, backward and the optimizer, by name; empty on a GPU, which works on while
    Python measures.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: {BARE: [], PLAIN: [], FULL: []})
    parts: dict[str, float] = field(default_factory=dict)

    def ratios(self, kind: str) -> list[float]:
        """Of the steps of a kind to the bare ones of the same rounds."""
        return [step / bare for step, bare in zip(self.seconds[kind], self.seconds[BARE], strict=True)]


def measure_step_overhead(
    config: str | Path,
    *,
    batch_size: int = 8,
    img_size: int = 224,
    rounds: int = 60,
    options: dict | None = None,
) -> StepOverhead:
    """Train what an ImageNet config describes on one batch of generated images, in turn bare and with all around it.

    A round is one step of each kind, of one model in one process: other load on the machine slows all of them alike.
    Loading data is no part of a step; the preprocessing of a batch is. options: entries of the config by dotted name.
    Raises UserError (a ValueError) for fewer than 3 rounds or a batch of no image, and what `train` raises.
    """
    if rounds < 3:
        raise UserError(f"rounds is {rounds}, which gives no spread; use at least 3.")
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; use at least 1.")
    changes = {
        "train_dataloader": {
            "_delete_": True,
            "batch_size": batch_size,
            "num_workers": 0,
            "collate_fn": {"type": "default_collate"},
            "dataset": {
                "type": "ShapesDataset",
                "length": _BATCHES * batch_size,
                "size": img_size,
                "pipeline": [{"type": "PackInputs"}],
            },
            "sampler": {"type": "DefaultSampler", "shuffle": False},
        },
        "train_cfg": {"_delete_": True, "type": "MeasuringLoop", "max_epochs": 300, "rounds": rounds},
    }
    with tempfile.TemporaryDirectory() as work_dir:
        train(config, work_dir=work_dir, validate=False, options={**(options or {}), **changes})
        return StepOverhead(**json.loads((Path(work_dir) / _RESULT).read_text()))


@LOOPS.register_module()
class MeasuringLoop(EpochBasedTrainLoop):
    """Steps of one batch in place of a training; leaves a StepOverhead in the folder of the run."""

    def __init__(self, *args: Any, rounds: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rounds, self.result = rounds, StepOverhead()

    def run(self) -> torch.nn.Module:
        runner = self.runner
        runner.call_hook("before_train")
        runner.call_hook("before_train_epoch")
        runner.model.train()
        self._batch = next(iter(self.dataloader))
        data = runner.model.data_preprocessor(self._fresh_batch(), training=True)
        samples = data["data_samples"]
        self._images = data["inputs"]
        self._targets = torch.stack([s.gt_score if "gt_score" in s else s.gt_label.squeeze() for s in samples])
        self._all_hooks = list(runner._hooks)
        self._times: dict[str, float] = defaultdict(float)
        if self._images.device.type == "cpu":
            self._instrument()
        for index in tqdm(range(-_WARM_UP, self.rounds), desc="rounds"):
            for kind, seconds in self.result.seconds.items():
                elapsed = self._timed(kind)
                if index >= 0:
                    seconds.append(elapsed)
                    if kind == FULL and self._times:
                        self._note_parts(elapsed)
        (Path(runner.work_dir) / _RESULT).write_text(json.dumps(asdict(self.result)))
        return runner.model

    def _fresh_batch(self) -> dict:
        """The batch as a data loader gives it; preprocessing writes into its samples."""
        return {**self._batch, "data_samples": [copy.copy(sample) for sample in self._batch["data_samples"]]}

    def _timed(self, kind: str) -> float:
        self.runner._hooks = [hook for hook in self._all_hooks if kind == FULL or not isinstance(hook, EMAHook)]
        batch = self._fresh_batch()
        self._times.clear()
        self._wait()
        start = time.perf_counter()
        if kind == BARE:
            self._bare_step()
        else:
            self.run_iter(self._iter, batch)
        self._wait()
        return time.perf_counter() - start

    def _note_parts(self, elapsed: float) -> None:
        parts, sums = dict(self._times), self.result.parts
        parts["MMEngine's own"] = elapsed - sum(parts.values())
        del parts[BARE]
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value

    def _wait(self) -> None:
        if self._images.device.type == "cuda":
            torch.cuda.synchronize(self._images.device)

    def _bare_step(self) -> None:
        optimizer = self.runner.optim_wrapper.optimizer
        logits = self.runner.model.model(self._images)
        torch.nn.functional.cross_entropy(logits, self._targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    def _instrument(self) -> None:
        """Time what a step is made of, each where it is called."""
        classifier, wrapper = self.runner.model, self.runner.optim_wrapper
        for owner, method in (
            (classifier.model, "forward"),
            (classifier.loss_module, "forward"),
            (wrapper, "backward"),
            (wrapper.optimizer, "step"),
        ):
            self._time(owner, method, BARE)
        self._time(classifier.data_preprocessor, "forward", "preprocessing of the batch")
        self._time(wrapper, "_clip_grad", "clipping and guard")
        for hook in self._all_hooks:
            for method in ("before_train_iter", "after_train_iter"):
                self._time(hook, method, type(hook).__name__)

    def _time(self, owner: Any, method: str, name: str) -> None:
        original: Callable = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._times[name] += time.perf_counter() - start

        setattr(owner, method, timed)


def overhead_table(result: StepOverhead) -> str:
    """Two Markdown tables: the kinds of steps, and on a CPU the parts of the whole step beyond the bare one."""
    rows = []
    for kind, seconds in result.seconds.items():
        low, _, high = (1e3 * value for value in quantiles(seconds, n=4))
        cells = [kind, f"{1e3 * median(seconds):.1f}", f"{low:.1f} - {high:.1f}", "", ""]
        if kind != BARE:
            below, _, above = quantiles(result.ratios(kind), n=4)
            cells[3:] = f"{median(result.ratios(kind)):.3f}", f"{below:.3f} - {above:.3f}"
        rows.append(cells)
    table = markdown_table(["", "ms, median", "quartiles", "to the bare step, median", "quartiles"], rows)
    return f"{table}\n\n{_parts_table(result)}" if result.parts else table


def _parts_table(result: StepOverhead) -> str:
    steps, total = len(result.seconds[FULL]), sum(result.parts.values())
    bare = fmean(result.seconds[FULL]) - total / steps
    shown = sorted((part for part in result.parts.items() if part[1] / steps > _SMALL), key=lambda part: -part[1])
    shown += [("other hooks", total - sum(value for _, value in shown)), ("all", total)]
    rows = [(name, f"{1e3 * value / steps:.2f}", f"{100 * value / steps / bare:.2f}") for name, value in shown]
    return markdown_table(["beyond the bare step, within the same steps", "ms, mean", "% of it"], rows)
