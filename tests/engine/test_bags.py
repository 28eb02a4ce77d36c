"""Bags of features: models for bags of unequal length, their data, and their runs."""

import os

import numpy as np
import pytest
import torch

from soft_vit.data.features import write_features
from soft_vit.engine import evaluate, train
from soft_vit.engine.metrics import AreaUnderCurve
from soft_vit.engine.models.bags import BagClassifier


def scores(pool: torch.nn.Module, h: torch.Tensor) -> torch.Tensor:
    return pool.score(torch.tanh(pool.hidden(h)) * torch.sigmoid(pool.gate(h)))


POOLS = {"mean": lambda _, h: h.mean(0), "max": lambda _, h: h.max(0).values}
POOLS["gated"] = lambda pool, h: (scores(pool, h).softmax(0) * h).sum(0)
MIXED = [*((None, pool) for pool in POOLS), ("nystrom", "token"), ("linear", "max"), ("softmax_one", "gated")]


@pytest.mark.parametrize(("attention", "pool"), MIXED)
def test_a_bag_scores_in_a_batch_as_alone(attention, pool):
    torch.manual_seed(0)
    model = BagClassifier(5, 3, attention=attention, pool=pool, dim=12).double().eval()
    bags = [torch.randn(length, 5, dtype=torch.float64) for length in (13, 1, 7)]
    alone = [model([bag])[0] for bag in bags]
    if attention is None:
        alone = [model.head.fc(POOLS[pool](model.pool, model.embed[0](bag).relu())) for bag in bags]
    torch.testing.assert_close(model(bags), torch.stack(alone), rtol=0, atol=1e-12)


def test_area_under_curve_is_the_share_of_pairs_in_order():
    rng, metric = np.random.default_rng(0), AreaUnderCurve()
    # No sample has the last class.
    # Nine kinds of samples, most of whose scores are 0 or 1 in fp32.
    logits, labels = 40 * torch.randn(9, 4)[rng.integers(9, size=37)].double(), torch.tensor(rng.integers(0, 3, 37))
    scores = logits.float().softmax(1)
    metric.process(None, [{"pred_score": scores[i], "gt_label": labels[i]} for i in range(37)])
    odds = torch.stack([logits[:, n] - logits[:, np.arange(4) != n].logsumexp(1) for n in range(3)])
    pairs = [(x[labels == n, None], x[labels != n]) for n, x in enumerate(odds)]
    expected = np.mean([((a > b) + (a == b) / 2).mean() for a, b in pairs])
    assert metric.compute_metrics(metric.results)["auc"] == pytest.approx(expected)


@pytest.fixture
def bags(tmp_path, monkeypatch) -> dict:
    """Options for 24 bags of both formats; one instance of a positive bag is marked."""
    monkeypatch.chdir(tmp_path)
    rng, lines = np.random.default_rng(0), ["file,label"]
    for number in range(24):
        x = rng.normal(size=(rng.integers(1, 9), 6)).astype(np.float32)
        x[0, 0] += 9 * (number % 2)
        lines.append(f"{number}.{'npz' if number % 3 else 'safetensors'},{('no', 'yes')[number % 2]}")
        write_features(lines[-1].partition(",")[0], {"features": x}, {})
    (tmp_path / "bags.csv").write_text("\n".join(lines))
    loaders = [f"{split}_dataloader" for split in ("train", "val", "test")]
    small = {f"{one}.{name}": 0 for one in loaders for name in ("num_workers", "persistent_workers")}
    small |= {"model.dim": 8, "train_dataloader.batch_size": 4, "optim_wrapper.accumulative_counts": 1}
    return small | {"data_root": "bags.csv", "train_cfg.max_epochs": 8, "optim_wrapper.optimizer.lr": 0.03}


def test_learns_from_a_csv_and_is_tested(bags):
    trained = train("configs/bags/gated.py", options=bags)
    assert (trained.metrics["roc/auc"], trained.images) == (1, 5)
    tested = evaluate("configs/bags/gated.py", str(trained.checkpoint), options=bags)
    assert tested["cross_entropy"] == pytest.approx(trained.metrics["cross_entropy"])


WRONG = [
    (lambda: write_features("5.npz", {"features": np.zeros((0, 6), np.float32)}, {}), {}, r"5\.npz.*\(0, 6\)"),
    (lambda: write_features("5.npz", {"features": np.zeros((2, 7), np.float32)}, {}), {}, r"5\.npz.*\(2, 7\)"),
    (lambda: os.truncate("5.npz", 300), {}, r"5\.npz"),
    (lambda: os.truncate("bags.csv", 4), {}, "label"),
    (lambda: np.savetxt("bags.csv", ["file,label,split", "1.npz,yes,train"], fmt="%s"), {}, "val"),
    (str, {"model.attention": "linformer"}, "linformer"),
    (str, {"model.pool": "token"}, "token"),
    (str, {"model.attention": "linear", "model.max_landmarks": 16}, "max_landmarks"),
]


@pytest.mark.parametrize(("spoil", "options", "words"), WRONG)
def test_mistakes(bags, spoil, options, words):
    spoil()
    with pytest.raises(ValueError, match=words):
        train("configs/bags/gated.py", options=bags | options)
