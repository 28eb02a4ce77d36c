"""Batches of images of many shapes, and a run on them."""

from engine.runs import CONFIGS, assert_same_state

from soft_vit.engine import train
from soft_vit.engine.data.naflex import NaFlexDataset, TokenBudgetSampler, collate_patches
from soft_vit.engine.evaluate import evaluate
from soft_vit.engine.resume.position import PositionSampler

SHAPES = dict(type="OvalsDataset", length=31)


def test_images_keep_their_aspect_ratio():
    data, squares = (NaFlexDataset(SHAPES, 8, 36, keep_ratio=keep) for keep in (True, False))
    batch = collate_patches([data[i] for i in range(31)])
    inputs, counts = batch["inputs"], batch["inputs"]["patch_valid"].sum(1)
    assert batch["labels"].tolist() == [i % 3 for i in range(31)]
    assert counts.max() == inputs["patches"].shape[1] <= 36
    assert (counts > 20).all()
    for coord, count, i in zip(inputs["patch_coord"], counts, range(31), strict=True):
        rows, columns = coord.amax(0) + 1
        image = data.dataset[i]["img"]
        assert rows * columns == count
        # Whole patches: at most half of one is added or left out on a side.
        assert abs(rows / columns - image.shape[0] / image.shape[1]) < 0.5 * rows / columns
    assert all(len(squares[i]["inputs"]["patches"]) == 36 for i in range(3))


def test_batches_hold_a_budget_of_tokens_and_continue():
    def batches(epoch: int, first: int = 0) -> list[list[int]]:
        sampler = PositionSampler(range(101), dict(type="DefaultSampler", shuffle=True), seed=0)
        budget = TokenBudgetSampler(sampler, 4, seq_lens=(16, 36, 64))
        sampler.begin(0, epoch, budget.begin(epoch, first))
        return list(budget)

    whole = batches(epoch=1)
    assert sorted(index for batch in whole for index in batch) == list(range(101))
    assert all(len({index.seq_len for index in batch}) == 1 for batch in whole)
    full = [len(batch) * batch[0].seq_len for batch in whole]
    assert max(full) <= 4 * 64
    assert sum(tokens > 3 * 64 for tokens in full) >= len(full) - 1
    assert batches(epoch=1, first=3) == whole[3:]
    assert batches(epoch=2) != whole


def test_a_run_resumes_exactly_and_is_tested(tmp_path):
    options = {
        "model.depth": 1,
        "model.embed_dim": 24,
        "train_dataloader.dataset.dataset.length": 40,
        "train_dataloader.batch_size": 5,
        "val_dataloader.dataset.dataset.length": 6,
        "test_dataloader.dataset.dataset.length": 6,
        "train_cfg.max_epochs": 2,
        "default_hooks.checkpoint.interval": 3,
        "default_hooks.checkpoint.by_epoch": False,
        "default_hooks.checkpoint.max_keep_ckpts": -1,
    }
    config = CONFIGS / "naflex" / "linear_ovals.py"
    train(config, work_dir=tmp_path / "a", options=options)
    train(config, work_dir=tmp_path / "b", options=options, resume=str(tmp_path / "a" / "iter_3.pth"))
    last = max((tmp_path / "a").glob("iter_*.pth"), key=lambda path: int(path.stem[5:])).name
    assert last != "iter_3.pth"
    assert_same_state(tmp_path / "a" / last, tmp_path / "b" / last)
    metrics = evaluate(config, str(tmp_path / "a" / last), options=options, work_dir=tmp_path / "test")
    assert metrics["images"] == 6
