"""Two processes over gloo: the same training as one with twice the batch, and one run in every other respect."""

import signal

import pytest
import torch
from distributed.preparations import Record, Strike
from distributed.processes import differences, final_state, train, train_ranks

from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.resume.stop import EXIT_STOPPED

# 24 images leave no batch that is smaller than the others.
OPTIONS = ["train_dataloader.dataset.length=24"]
# What one process draws for a batch, two cannot draw for its halves. Flips belong to samples, wherever they are loaded.
NOTHING_DRAWN = ["model.drop_rate=0", "model.drop_path_rate=0", "model.train_cfg=None", "model.loss.use_soft=False"]
STEPS = 9


@pytest.mark.slow
def test_same_losses_as_one_process_with_twice_the_batch(tmp_path):
    one, two = Record(tmp_path / "one", True), Record(tmp_path / "two", True)
    options = [*OPTIONS, *NOTHING_DRAWN]
    assert train_ranks(2, two.folder, options=options, preparations=[two.install] * 2) == [0, 0]
    assert train(one.folder, options=[*options, "train_dataloader.batch_size=8"], preparation=one.install) == 0
    alone, together = one.losses(0), (two.losses(0) + two.losses(1)) / 2
    assert len(alone) == STEPS
    assert not torch.equal(two.losses(0), two.losses(1))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Record:
    """Two processes with BatchNorm's statistics as they come, to the end."""
    record = Record(tmp_path_factory.mktemp("live"), False)
    codes = train_ranks(2, record.folder, options=OPTIONS, preparations=[record.install] * 2)
    assert codes == [0, 0], (record.folder / "output").read_text()[-3000:]
    return record


@pytest.mark.parametrize("iteration", [2, 6, 9])
def test_a_checkpoint_holds_the_buffers_of_all_ranks(live, iteration):
    ranks = [torch.load(live.folder / f"buffers_{rank}_{iteration}", weights_only=True) for rank in (0, 1)]
    means = [name for name in ranks[0]["after"] if name.endswith("running_mean")]
    assert means
    assert any(not torch.equal(ranks[0]["before"][name], ranks[1]["before"][name]) for name in means)
    assert differences(ranks[0]["after"], ranks[1]["after"]) == []
    if iteration == STEPS:
        # The plain weights are beside the averaged ones.
        saved = load_checkpoint_file(live.folder / f"iter_{iteration}.pth")["ema_state_dict"]
        assert all(torch.equal(saved[f"module.{name}"], ranks[0]["after"][name]) for name in means)


@pytest.mark.parametrize("divided", [pytest.param(False, marks=pytest.mark.slow), True])
def test_notice_to_one_of_two(live, tmp_path, divided):
    """divided: the optimizer's state is spread over the processes; it steps as a whole one does."""
    zero = {"type": "ZeroRedundancyOptimizer", "optimizer_type": "AdamW"}
    options = [*OPTIONS, *(f"optim_wrapper.optimizer.{name}={value}" for name, value in zero.items() if divided)]
    strike = Strike(4, "before", signal.SIGTERM)
    codes = train_ranks(2, tmp_path, options=options, preparations=(None, strike.install))
    assert codes == [EXIT_STOPPED, EXIT_STOPPED], (tmp_path / "output").read_text()[-3000:]
    assert "iteration 4 is saved" in (tmp_path / "output").read_text()
    assert train_ranks(2, tmp_path, "--resume", options=options) == [0, 0], (tmp_path / "output").read_text()[-3000:]
    ended, expected = final_state(tmp_path), final_state(live.folder)
    if divided:
        # Its groups name fewer of AdamW's settings.
        ended["optimizer"], expected["optimizer"] = ended["optimizer"]["state"], expected["optimizer"]["state"]
    assert differences(ended, expected) == []
