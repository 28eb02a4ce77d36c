"""Training loops that resume exactly, also in the middle of an epoch.

`train_cfg = dict(by_epoch=...)` chooses between them; `train_cfg = dict(type=...)` names another loop.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from mmengine.dataset import InfiniteSampler
from mmengine.registry import DATA_SAMPLERS, LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from soft_vit.engine.resume.position import PositionSampler, SeededDataset, run_seed
from soft_vit.resume.position import seed_step


def _with_positions(dataloader: dict) -> dict:
    """Return the config of a data loader with positions of samples.

    Raises ValueError for a batch sampler whose batches cannot be skipped.
    """
    batches = dataloader.get("batch_sampler")
    if batches is not None and not hasattr(DATA_SAMPLERS.get(batches["type"]), "begin"):
        raise ValueError("batch_sampler must be None or TokenBudgetSampler, or train_cfg.type EpochBasedTrainLoop.")
    return {
        **dataloader,
        "dataset": {"type": SeededDataset, "dataset": dataloader["dataset"]},
        "sampler": {"type": PositionSampler, "sampler": dataloader["sampler"]},
    }


def _batches(runner: Runner, epoch: int, first: int) -> Iterator[Any]:
    """Yield the batches of an epoch, starting at number `first`, without loading earlier ones."""
    loader = runner.train_dataloader
    batches = loader.batch_sampler
    skipped = batches.begin(epoch, first) if hasattr(batches, "begin") else first * batches.batch_size
    batches.sampler.begin(run_seed(runner), epoch, skipped)
    yield from loader


def _require_batch(loader: DataLoader) -> None:
    if len(loader) == 0:
        # The loader's own batch_size is None if the config names a batch sampler.
        images, batch_size = len(loader.dataset), loader.batch_sampler.batch_size
        raise ValueError(f"batch_size must be less for {images} images, or drop_last False, got {batch_size}.")


def _fit_schedules(loop: EpochBasedTrainLoop | IterBasedTrainLoop) -> None:
    """Let schedules without an `end` end with the run, and remove those that would begin after it.

    MMEngine refuses the latter, and takes a run by iteration for one epoch.
    """
    schedulers, kept = loop.runner.param_schedulers, []
    # Schedules of several optimizers are a dict without a type.
    if not isinstance(schedulers, list) and "type" not in (schedulers or {}):
        return
    for scheduler in schedulers if isinstance(schedulers, list) else [schedulers]:
        end = Fraction(loop.max_iters, max(1, len(loop.dataloader)) if scheduler.get("by_epoch", True) else 1)
        if (last := scheduler.get("end", 0)) > end:
            loop.runner.logger.warning(f"{scheduler['type']} ends at {last}, after the run at {float(end):g}.")
        if "end" in scheduler or scheduler.get("begin", 0) < end:
            # Only a schedule that is converted to iterations can end within a round through the data.
            end = end if scheduler.get("convert_to_iter_based") else math.ceil(end)
            kept.append({"end": end, **scheduler})
    loop.runner.param_schedulers = kept


def _validate(loop: EpochBasedTrainLoop | IterBasedTrainLoop, done: int, last: int) -> None:
    """Validate if it is due after this epoch or iteration."""
    loop._decide_current_val_interval()
    if loop.runner.val_loop is not None and done >= loop.val_begin and (done % loop.val_interval == 0 or done == last):
        loop.runner.val_loop.run()


@LOOPS.register_module()
class ExactEpochLoop(EpochBasedTrainLoop):
    """MMEngine's EpochBasedTrainLoop that resumes from a checkpoint of any iteration.

    A run that resumes at the end of an epoch begins with the validation that follows the checkpoint. Raises ValueError
    for data that does not fill a batch.
    """

    def __init__(self, runner: Runner, dataloader: dict, *args: Any, **kwargs: Any) -> None:
        super().__init__(runner, _with_positions(dataloader), *args, **kwargs)
        _require_batch(self.dataloader)
        _fit_schedules(self)

    def run(self) -> Any:
        self.runner.call_hook("before_train")
        if self._iter == self._epoch * len(self.dataloader) > 0:
            _validate(self, self._epoch, self._max_epochs)
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            _validate(self, self._epoch, self._max_epochs)
        self.runner.call_hook("after_train")
        return self.runner.model

    def run_epoch(self) -> None:
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        first = self._iter - self._epoch * len(self.dataloader)
        for index, batch in enumerate(_batches(self.runner, self._epoch, first), first):
            self.run_iter(index, batch)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        # For all that draws in a step; its batch is loaded before, so what it drew in this process does not matter.
        seed_step(run_seed(self.runner), self.runner.rank, self._iter)
        super().run_iter(idx, data_batch)


@LOOPS.register_module()
class ExactIterLoop(IterBasedTrainLoop):
    """MMEngine's IterBasedTrainLoop that finds its place without loading earlier batches.

    A run that resumes where a validation is due begins with it, since it follows the checkpoint. For schedules that
    count epochs, an epoch is one pass over the data. Raises ValueError for data that does not fill a batch, unless the
    sampler repeats it endlessly.
    """

    def __init__(self, runner: Runner, dataloader: dict, *args: Any, **kwargs: Any) -> None:
        super().__init__(runner, _with_positions(dataloader), *args, **kwargs)
        # Its workers would idle next to those of the run.
        del self.dataloader_iterator
        self._endless = isinstance(self.dataloader.batch_sampler.sampler.sampler, InfiniteSampler)
        if not self._endless:
            _require_batch(self.dataloader)
        _fit_schedules(self)

    def run(self) -> Any:
        self.runner.call_hook("before_train")
        self.runner.call_hook("before_train_epoch")
        if self._iter > 0:
            _validate(self, self._iter, self._max_iters)
        batches = self._all_batches()
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(batches))
            _validate(self, self._iter, self._max_iters)
        self.runner.call_hook("after_train_epoch")
        self.runner.call_hook("after_train")
        return self.runner.model

    def run_iter(self, data_batch: Any) -> None:
        begins_round = self._iter > 0 and self._iter % max(1, len(self.dataloader)) == 0
        # MMEngine sees one epoch in a run by iteration. A checkpoint after the last iteration of a round holds the
        # state of schedules that count epochs before it.
        for scheduler in (self.runner.param_schedulers or ()) if begins_round else ():
            if scheduler.by_epoch:
                scheduler.step()
        seed_step(run_seed(self.runner), self.runner.rank, self._iter)
        super().run_iter(data_batch)

    def _all_batches(self) -> Iterator[Any]:
        epoch, first = (0, self._iter) if self._endless else divmod(self._iter, len(self.dataloader))
        while True:
            yield from _batches(self.runner, epoch, first)
            epoch, first = epoch + 1, 0
