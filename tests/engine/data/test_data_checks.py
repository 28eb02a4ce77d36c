"""What a config says of its data."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from soft_vit.engine import UserError
from soft_vit.engine.data.data_checks import ClassCountHook, fill_data_root


def test_data_root_reaches_every_tree_without_one():
    cfg = Config(
        {
            "data_root": "/data",
            "train_dataloader": {
                "dataset": {
                    "type": "ConcatDataset",
                    "datasets": [
                        {"type": "RepeatDataset", "dataset": {"type": "ImageTree", "split": "train"}},
                        {"type": "ImageTree", "data_root": "/own"},
                        {"type": "soft_vit.ImageTree"},
                    ],
                }
            },
            "val_dataloader": {"dataset": {"type": "AnotherTree", "data_root": None}},
            "test_dataloader": {"dataset": {"type": "ShapesDataset"}},
        }
    )
    fill_data_root(cfg)
    first, second, third = cfg.train_dataloader.dataset.datasets
    assert first.dataset.data_root == "/data"
    assert second.data_root == "/own"
    assert third.data_root == "/data"
    assert cfg.val_dataloader.dataset.data_root == "/data"
    assert "data_root" not in cfg.test_dataloader.dataset


@pytest.mark.parametrize("content", [{}, {"data_root": None, "val_dataloader": {"dataset": {"type": "ImageTree"}}}])
def test_without_a_data_root(content):
    cfg = Config(content)
    fill_data_root(cfg)
    assert cfg.to_dict() == content


TEN = SimpleNamespace(num_classes=10)


@pytest.mark.parametrize(
    ("classes", "model", "message"),
    [
        (10, {"model": TEN}, None),
        (10, {"model": SimpleNamespace(num_classes=1000)}, None),
        (11, {"model": TEN}, "has 11 classes and the model tells 10 apart; set model.num_classes to 11"),
        (11, {"head": TEN}, "has 11 classes and the model tells 10 apart"),
        (11, {}, None),
        (None, {"model": SimpleNamespace(num_classes=1)}, None),
        (10, {"model": TEN, "data_preprocessor": SimpleNamespace(mixing=None)}, None),
        (10, {"model": TEN, "data_preprocessor": SimpleNamespace(mixing=TEN)}, None),
        (
            9,
            {"model": SimpleNamespace(num_classes=9), "data_preprocessor": SimpleNamespace(mixing=TEN)},
            "num_classes to 9",
        ),
    ],
)
def test_classes_fit_the_head(classes, model, message):
    metainfo = {} if classes is None else {"classes": tuple(map(str, range(classes)))}
    loader = SimpleNamespace(dataset=SimpleNamespace(metainfo=metainfo))
    run = SimpleNamespace(train_dataloader=loader, model=SimpleNamespace(**model))
    with pytest.raises(UserError, match=message) if message else nullcontext():
        ClassCountHook().before_train(run)
