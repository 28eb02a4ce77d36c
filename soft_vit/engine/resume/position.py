"""Where a run of MMEngine is in its data: samples that are seeded by their position, and a sampler that skips."""

import copy
from collections.abc import Iterator
from typing import Any

from mmengine.dist import get_dist_info
from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import Runner
from torch.utils.data import Sampler

from soft_vit.registry import HOOKS, register
from soft_vit.resume.position import SampleIndex, seed_sample

# See BatchPositionHook; MMEngine's own hook forgets them.
EarlyStoppingHook.kept = ("wait_count", "best_score")


def run_seed(runner: Runner) -> int:
    """Return the seed that all ranks of a run share; a resumed run without a seed uses its checkpoint's."""
    return runner.seed - runner.rank if runner._randomness_cfg.get("diff_rank_seed", False) else runner.seed


class SeededDataset:
    """Wraps a data set, and seeds each sample from the key of its `SampleIndex`.

    dataset: the config of a data set.
    """

    def __init__(self, dataset: dict) -> None:
        self.dataset = DATASETS.build(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, SampleIndex):
            seed_sample(*index.key)
        return self.dataset[index if hasattr(index, "seq_len") else int(index)]

    def __getattr__(self, name: str) -> Any:
        # Special names would let a loader bypass __getitem__; copying looks up `dataset` before it exists.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Hooks replace the pipeline of a data set during a run.
        if name == "dataset":
            super().__setattr__(name, value)
        else:
            setattr(self.dataset, name, value)


class PositionSampler(Sampler):
    """Yields the indices of another sampler as `SampleIndex`, starting at any batch of an epoch.

    sampler: config of the other sampler. It gives rank r of R the entries r, r + R, r + 2R, ... of an order that all
    ranks share, as those of MMEngine and MMPretrain do, so augmentation does not depend on the number of ranks. A
    sample that occurs twice in an epoch is augmented differently.
    """

    def __init__(self, dataset: Any, sampler: dict, seed: int | None = None) -> None:
        self.sampler = DATA_SAMPLERS.build(sampler, default_args={"dataset": dataset, "seed": seed or 0})
        self._order_follows_run = "seed" not in sampler
        self._rank, self._num_ranks = get_dist_info()
        self._seed, self._epoch = seed or 0, 0
        # Empty before `begin`: a loop that creates its iterator early must not load skipped samples.
        self._skipped: int | None = None

    def begin(self, seed: int, epoch: int, skipped: int) -> None:
        """Set the seed of the run, the epoch, and how many samples of this rank the next pass skips."""
        self._seed, self._skipped = seed, skipped
        if self._order_follows_run:
            self.sampler.seed = seed
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[SampleIndex]:
        if self._skipped is None:
            return
        seed, epoch, skipped = self._seed, self._epoch, self._skipped
        self._skipped = 0
        for place, index in enumerate(self.sampler):
            if place >= skipped:
                yield SampleIndex(index, (seed, epoch, place * self._num_ranks + self._rank))


@register(HOOKS)
class BatchPositionHook(Hook):
    """Saves the number of processes, their batch size and the steps of an epoch in the `meta` of each checkpoint.

    It also saves and restores the attributes that a hook names in `kept`, which must be plain Python values.

    Raises ValueError for a resumed run with another number of steps or another global batch, since positions among the
    samples and in the schedule are counted in steps. Logs a warning for another number of processes with the same
    global batch, and for a run of another length. The state of the optimizer and of its schedules comes from the
    checkpoint, as in MMEngine.
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint["meta"]["batches"] = self._describe(runner)
        kept = ((type(hook).__name__, hook) for hook in runner.hooks if hasattr(hook, "kept"))
        checkpoint["meta"]["hooks"] = [(kind, {name: getattr(hook, name) for name in hook.kept}) for kind, hook in kept]

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # In a test this would build the training data.
        if not runner._resume:
            return
        states = list(checkpoint["meta"].get("hooks", ()))
        for hook in runner.hooks:
            # The first one of its type that is left: a run may have several.
            if state := next((state for state in states if state[0] == type(hook).__name__), None):
                states.remove(state)
                vars(hook).update(copy.deepcopy(state[1]))
        length = checkpoint["message_hub"]["runtime_info"].get("max_iters", runner.max_iters)
        if length != runner.max_iters:
            runner.logger.warning(f"Schedules stay those of {length} iterations, and the run has {runner.max_iters}.")
        before = checkpoint["meta"].get("batches")
        if before is None or before == (now := self._describe(runner)):
            return
        words = "{processes} processes of batch {batch_size} with {steps} steps an epoch"
        difference = f"{words.format(**before)}, got {words.format(**now)}"
        same_batch = before["processes"] * before["batch_size"] == now["processes"] * now["batch_size"]
        if not same_batch or before["steps"] != now["steps"]:
            raise ValueError(f"A resumed run must have {difference}; use load_from to begin a run from these weights.")
        runner.logger.warning(f"The checkpoint is of {difference}: samples are the same, random numbers differ.")

    @staticmethod
    def _describe(runner: Runner) -> dict[str, int]:
        loader = runner.train_dataloader
        # loader.batch_size is None in configs with a batch sampler, as mmdet's.
        return {"processes": runner.world_size, "batch_size": loader.batch_sampler.batch_size, "steps": len(loader)}
