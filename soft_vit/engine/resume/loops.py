"""Training loops that resume exactly, also in the middle of an epoch.

`soft_vit.engine.config` chooses them for `train_cfg = dict(by_epoch=...)`; `train_cfg = dict(type=...)` names
another.
"""

import math
from collections.abc import Iterator
from typing import Any

from mmengine.dataset import InfiniteSampler
from mmengine.registry import DATA_SAMPLERS, LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from soft_vit.engine.resume.position import PositionSampler, SeededDataset, run_seed, seed_step


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


def _seed_step(runner: Runner) -> None:
    """Seed the step that comes next, for drop path, mixup and whatever else draws random numbers.

    Its batch is loaded before, so random numbers that loading drew in this process change nothing.
    """
    seed_step(run_seed(runner), runner.rank, runner.iter)


def _require_batch(loader: DataLoader) -> None:
    if len(loader) == 0:
        # The loader's own batch_size is None if the config names a batch sampler.
        images, batch_size = len(loader.dataset), loader.batch_sampler.batch_size
        raise ValueError(f"batch_size must be less for {images} images, or drop_last False, got {batch_size}.")


def _drop_late_schedules(loop: EpochBasedTrainLoop | IterBasedTrainLoop) -> None:
    """Remove schedules without an `end` that would begin after the run; MMEngine refuses them."""

    def begins_late(scheduler: dict) -> bool:
        length = loop.max_epochs if scheduler.get("by_epoch", True) else loop.max_iters
        return "end" not in scheduler and scheduler.get("begin", 0) >= length

    schedulers = loop.runner.param_schedulers
    if isinstance(schedulers, list):
        loop.runner.param_schedulers = [scheduler for scheduler in schedulers if not begins_late(scheduler)]


@LOOPS.register_module()
class ExactEpochLoop(EpochBasedTrainLoop):
    """MMEngine's EpochBasedTrainLoop that resumes from a checkpoint of any iteration.

    A run that resumes at the end of an epoch begins with the validation, which follows the checkpoint.
    Raises ValueError for data that does not fill a batch.
    """

    def __init__(self, runner: Runner, dataloader: dict, *args: Any, **kwargs: Any) -> None:
        super().__init__(runner, _with_positions(dataloader), *args, **kwargs)
        _require_batch(self.dataloader)
        _drop_late_schedules(self)

    def run(self) -> Any:
        self.runner.call_hook("before_train")
        if self._iter == self._epoch * len(self.dataloader) > 0:
            self._validate()
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._validate()
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
        _seed_step(self.runner)
        super().run_iter(idx, data_batch)

    def _validate(self) -> None:
        """Validate if it is due after this epoch."""
        self._decide_current_val_interval()
        due = self._epoch % self.val_interval == 0 or self._epoch == self._max_epochs
        if self.runner.val_loop is not None and self._epoch >= self.val_begin and due:
            self.runner.val_loop.run()


@LOOPS.register_module()
class ExactIterLoop(IterBasedTrainLoop):
    """MMEngine's IterBasedTrainLoop that finds its place without loading earlier batches.

    Raises ValueError for data that does not fill a batch, unless the sampler repeats it endlessly.
    """

    def __init__(self, runner: Runner, dataloader: dict, *args: Any, **kwargs: Any) -> None:
        super().__init__(runner, _with_positions(dataloader), *args, **kwargs)
        # Its workers would idle next to those of the run.
        del self.dataloader_iterator
        self._endless = isinstance(self.dataloader.batch_sampler.sampler.sampler, InfiniteSampler)
        if not self._endless:
            _require_batch(self.dataloader)
        # MMEngine's is 1, whatever the length of a schedule that counts epochs.
        self._max_epochs = math.ceil(self._max_iters / len(self.dataloader))
        _drop_late_schedules(self)

    def run(self) -> Any:
        self.runner.call_hook("before_train")
        self.runner.call_hook("before_train_epoch")
        batches = self._all_batches()
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(batches))
            self._decide_current_val_interval()
            due = self._iter % self.val_interval == 0 or self._iter == self._max_iters
            if self.runner.val_loop is not None and self._iter >= self.val_begin and due:
                self.runner.val_loop.run()
        self.runner.call_hook("after_train_epoch")
        self.runner.call_hook("after_train")
        return self.runner.model

    def run_iter(self, data_batch: Any) -> None:
        _seed_step(self.runner)
        super().run_iter(data_batch)

    def _all_batches(self) -> Iterator[Any]:
        epoch, first = (0, self._iter) if self._endless else divmod(self._iter, len(self.dataloader))
        while True:
            yield from _batches(self.runner, epoch, first)
            epoch, first = epoch + 1, 0
