"""A resumed run has to share its samples out as before."""

from types import SimpleNamespace

import pytest
from torch.utils.data import BatchSampler, DataLoader

from soft_vit.engine import UserError
from soft_vit.engine.resume.batch_position_hook import BatchPositionHook


def a_run(processes: int, batch_size: int, steps: int, resume: bool = True) -> SimpleNamespace:
    warnings = []
    logger = SimpleNamespace(warning=warnings.append, said=warnings)
    places = range(batch_size * steps)
    loader = DataLoader(places, batch_sampler=BatchSampler(places, batch_size, drop_last=False))
    return SimpleNamespace(world_size=processes, train_dataloader=loader, _resume=resume, logger=logger)


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (a_run(2, 4, 10), "goes on"),
        (a_run(1, 8, 10), "warns"),
        (a_run(8, 1, 10), "warns"),
        # One more image leaves as many samples for each rank, and a step more.
        (a_run(1, 8, 11), "fails"),
        (a_run(1, 4, 20), "fails"),
        (a_run(1, 4, 10), "fails"),
        (a_run(2, 4, 11), "fails"),
        # Starting from weights, not resuming.
        (a_run(1, 4, 20, resume=False), "goes on"),
    ],
)
def test_change(now, outcome):
    checkpoint = {"meta": {}}
    BatchPositionHook().before_save_checkpoint(a_run(2, 4, 10), checkpoint)
    if outcome == "fails":
        with pytest.raises(UserError, match="was written by 2 processes of batch 4 with 10 steps an epoch, and this"):
            BatchPositionHook().after_load_checkpoint(now, checkpoint)
    else:
        BatchPositionHook().after_load_checkpoint(now, checkpoint)
        assert len(now.logger.said) == (outcome == "warns")


def test_checkpoint_without_a_note():
    BatchPositionHook().after_load_checkpoint(a_run(1, 1, 1), {"meta": {}})
