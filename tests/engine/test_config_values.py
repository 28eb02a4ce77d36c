"""A value that stands once in a config reaches every entry that needs it."""

import pytest
from mmengine.config import Config
from PIL import Image

from soft_vit.engine.config import load_config
from soft_vit.engine.config_values import count_classes, fill_data_root, require_one_size


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


def sizes_of(cfg: Config) -> list:
    shown = []
    for split in ("train", "val", "test"):
        dataset = cfg[f"{split}_dataloader"].dataset
        drawn = [dataset.size] if "size" in dataset else []
        shown += drawn + [entry.img_size for entry in dataset.pipeline if "img_size" in entry]
    return [cfg.model.get("img_size"), *shown]


@pytest.mark.parametrize("config", ["soft_tiny", "soft_tiny_albumentations", "demo/soft_pico_shapes"])
@pytest.mark.parametrize("option", ["image_size", "model.img_size"])
def test_image_size_is_one_value(config, option):
    cfg = load_config(f"configs/{config}.py", {option: 96})
    assert sizes_of(cfg) == [96] * 4
    assert cfg.image_size == 96
    require_one_size(cfg)


def test_sizes_that_contradict_each_other():
    own = {"train_dataloader.dataset.size": 32}
    cfg = load_config("configs/demo/soft_pico_shapes.py", own)
    assert sizes_of(cfg) == [64, 32, 64, 64]
    with pytest.raises(ValueError, match=r"dataset\.size is 32 and model\.img_size is 64; set image_size"):
        require_one_size(cfg)
    require_one_size(load_config("configs/demo/soft_pico_shapes.py", {**own, "model.img_size": [32, 32]}))
    with pytest.raises(ValueError, match=r"image_size is 32 and model\.img_size is 96"):
        load_config("configs/demo/soft_pico_shapes.py", {"image_size": 32, "model.img_size": 96})


@pytest.mark.parametrize(("name", "size"), [("resnet18", None), ("deit_tiny_patch16_224", 96), ("soft_tiny.x", 96)])
def test_models_of_any_size_are_told_none(name, size):
    cfg = load_config("configs/soft_tiny.py", {"image_size": 96, "model.model_name": name})
    assert cfg.model.get("img_size") == size


@pytest.mark.parametrize(
    ("options", "model", "batches"),
    [
        ({}, 1000, 1000),
        ({"num_classes": 7}, 7, 7),
        ({"model.num_classes": 7}, 7, 7),
        ({"num_classes": 7, "data_preprocessor.num_classes": 9}, 7, 9),
    ],
)
def test_number_of_classes_is_one_value(options, model, batches):
    cfg = load_config("configs/soft_tiny.py", options)
    assert (cfg.num_classes, cfg.model.num_classes, cfg.data_preprocessor.num_classes) == (model, model, batches)


def test_classes_are_counted_in_the_folders(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "train" / name / "0.png")
    options = {"data_root": str(tmp_path)}
    cfg = load_config("configs/finetune/soft_tiny_imagefolder.py", options)
    assert "num_classes" not in cfg.model
    count_classes(cfg)
    assert (cfg.num_classes, cfg.model.num_classes, cfg.data_preprocessor.num_classes) == (3, 3, 3)
    for given in ({"num_classes": 5}, {"model.num_classes": 5}):
        cfg = load_config("configs/finetune/soft_tiny_imagefolder.py", {**options, **given})
        count_classes(cfg)
        assert cfg.model.num_classes == 5
    cfg = load_config("configs/finetune/soft_tiny_imagefolder.py", {"data_root": str(tmp_path / "none")})
    with pytest.raises((FileNotFoundError, ValueError), match="none"):
        count_classes(cfg)


@pytest.mark.parametrize(
    ("config", "options", "ends"),
    [
        ("soft_tiny", {}, [10, 300]),
        ("soft_tiny", {"max_epochs": 12}, [10, 12]),
        ("soft_tiny", {"max_epochs": 10}, [10]),
        ("soft_tiny", {"max_epochs": "ten"}, [10, None]),
        ("segmentation/upernet_soft_norm_small_512_ade20k", {}, [1500, 160_000]),
        ("segmentation/fpn_soft_norm_tiny_512_ade20k", {"max_iters": 40}, [40]),
    ],
)
def test_schedule_lasts_as_long_as_the_run(config, options, ends):
    cfg = load_config(f"configs/{config}.py", {f"train_cfg.{name}": value for name, value in options.items()})
    assert [scheduler.get("end") for scheduler in cfg.param_scheduler] == ends
