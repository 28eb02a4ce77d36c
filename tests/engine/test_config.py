"""A config is resolved from top to bottom: the file, options, shared values, flags, the machine, checks."""

from pathlib import Path

import pytest
import timm
import torch
from engine.runs import CONFIGS, DEMO, resolved
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from timm.layers import to_2tuple

from soft_vit.dense.segmentation.segmentor import _test_options
from soft_vit.engine import DiagnosticsHook, ImageTree, SafeCheckpointHook, TimmTrainClassifier, machine
from soft_vit.engine.config import resolve
from soft_vit.engine.entries import entries, type_name
from soft_vit.registry import DATASETS, HOOKS, MODELS
from soft_vit.weights.spec import NOTES_KEY, ModelSpec

# The baselines are held against soft_tiny.py in test_recipes.py.
ALL = sorted(path for path in CONFIGS.rglob("*.py") if path.parent.name not in ("_base_", "baselines"))
SIZED = ("AlbumentationsTransform", "ShapesDataset", "TimmAugment", "TimmEvalCrop")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# Files.


# test_recipes.py resolves those of the zoo.
PATHS = [
    pytest.param(path, id=str(path.relative_to(CONFIGS)), marks=[pytest.mark.slow] * (path.parent.name == "zoo"))
    for path in ALL
]


@pytest.mark.parametrize("path", PATHS)
def test_every_config_resolves_to_itself(path):
    """What is resolved can be saved, and resolves to the same."""
    pytest.importorskip(path.parent.name if path.parent.name in ("mmdet", "mmseg") else "mmpretrain")
    cfg = resolved(path)
    assert Config.fromstring(cfg.pretty_text, ".py").to_dict() == cfg.to_dict()
    assert cfg.default_hooks["weights"] == {"type": "WeightsHook"}
    model = cfg.model
    if "model_name" in model and path.parent.name not in ("mmdet", "mmseg"):
        sizes = [entry.get("img_size", entry.get("size")) for _, entry in entries(cfg) if type_name(entry) in SIZED]
        # Models of images of many shapes have none.
        assert set(sizes) == ({model.get("img_size", cfg.get("image_size"))} if "image_size" in cfg else set())


def test_pure_python_style(tmp_path):
    """Only names can be saved."""
    text = """
from mmengine.hooks import EMAHook
from soft_vit.engine import TimmTrainClassifier

model = dict(type=TimmTrainClassifier, model_name="soft_pico")
custom_hooks = [dict(type=EMAHook)]
"""
    cfg = resolve(written(tmp_path / "c.py", text))
    assert (cfg.model.type, cfg.custom_hooks[0].type) == ("TimmTrainClassifier", "mmengine.hooks.EMAHook")
    assert Config.fromstring(cfg.pretty_text, ".py").to_dict() == cfg.to_dict()


def test_saved_config_of_an_earlier_version(tmp_path):
    """It names classes and modules where they stood, and lacks hooks that were added in code."""
    text = """
custom_imports = dict(imports=["soft_vit.engine"])
model = dict(type="soft_vit.engine.classifier.TimmProgressClassifier", model_name="soft_pico")
default_hooks = dict(
    watch=dict(type="WatchHook"),
    checkpoint=dict(type="soft_vit.engine.checkpoints.checkpoint_hook.SafeCheckpointHook"),
    checks=dict(type="RunChecksHook"),
)
train_cfg = dict(type="soft_vit.engine.loops.ExactEpochLoop", max_epochs=2)
"""
    cfg = resolve(written(tmp_path / "c.py", text))
    assert MODELS.get(cfg.model.type) is TimmTrainClassifier
    assert HOOKS.get(cfg.default_hooks.watch.type) is DiagnosticsHook
    assert cfg.default_hooks.checkpoint.type == "SafeCheckpointHook"
    assert cfg.train_cfg.type == "ExactEpochLoop"
    assert {"weights", "stop", "throughput"} <= cfg.default_hooks.keys()


# Options.

RETINANET = CONFIGS / "detection" / "retinanet_soft_pico_shapes.py"
FINETUNE = CONFIGS / "finetune" / "soft_tiny_imagefolder.py"


REFUSED = [
    # They change nothing.
    (DEMO, "optim_wrapper.paramwise_cfg.layer_decay", 0.5, "optim_wrapper.constructor"),
    *((DEMO, name, "x", name) for name in ("train_pipeline.0.prob", "max_epochs", "data_root", "optim_wraper.type")),
    (RETINANET, "image_size", 8, "image_size"),
    (CONFIGS / "naflex" / "linear_ovals.py", "image_size", 128, "image_size"),
    # Cannot be merged.
    (DEMO, "param_scheduler.5.end", 3, "param_scheduler.5.end"),
    (DEMO, "train_cfg.max_iters", 3, "max_iters"),
    (CONFIGS / "segmentation" / "upernet_soft_pico_shapes.py", "train_cfg.max_epochs", 3, "max_epochs"),
    # They would end the run late.
    (DEMO, "train_cfg.max_epochs", 0, "max_epochs"),
    (DEMO, "train_cfg.max_epochs", 1.5, "max_epochs"),
    (DEMO, "train_cfg.val_interval", 0, "val_interval"),
    (DEMO, "train_cfg.val_intervall", 2, "val_intervall"),
    (DEMO, "train_dataloader.batch_size", 0, "batch_size"),
    (DEMO, "optim_wrapper.accumulative_counts", 0, "accumulative_counts"),
    (DEMO, "default_hooks.checkpoint.interval", "5", "interval"),
    (DEMO, "default_hooks.logger.intervall", 5, "intervall"),
    (DEMO, "default_hooks.watch.interval", 0, "interval"),
    (DEMO, "custom_hooks", [{"type": "FeatureRedrawHook", "feature_redraw_interval": 0}], "redraw_interval"),
    # They cannot be shared.
    (FINETUNE, "image_size", "abc", "got abc"),
    (FINETUNE, "image_size", 0, "got 0"),
    (DEMO, "auto_scale_lr", {"enable": True, "base_batch_size": 0}, "base_batch_size"),
]


@pytest.mark.parametrize(("config", "option", "value", "named"), REFUSED)
def test_option_that_is_refused(config, option, value, named):
    with pytest.raises(ValueError, match=named):
        resolve(config, {option: value, "env_cfg.cudnn_benchmark": True, "find_unused_parameters": True})


def test_misspelt_argument_of_the_hook_that_saves():
    with pytest.raises(ValueError, match="intervall"):
        SafeCheckpointHook(interval=1, intervall=5)


# Shared values.


def sizes_of(cfg: Config) -> list:
    shown = []
    for split in ("train", "val", "test"):
        dataset = cfg[f"{split}_dataloader"].dataset
        drawn = [dataset.size] if "size" in dataset else []
        shown += drawn + [entry.img_size for entry in dataset.pipeline if "img_size" in entry]
    return [cfg.model.get("img_size"), *shown]


GIVEN = [("soft_tiny_albumentations", "image_size"), ("soft_tiny", "model.img_size"), ("demo/zoo/mlla", "image_size")]


@pytest.mark.parametrize(("config", "option"), GIVEN)
def test_image_size_is_one_value(config, option):
    cfg = resolve(CONFIGS / f"{config}.py", {option: 96})
    assert (cfg.image_size, sizes_of(cfg)) == (96, [96] * 4)


@pytest.mark.parametrize("value", [256, (256, 192)])
@pytest.mark.parametrize("name", ["upernet_soft_norm_small", "fpn_soft_norm_tiny"])
def test_image_size_of_a_segmentor(name, value):
    """Crops, padding and windows have the size, and images are scaled to it as before."""
    path = CONFIGS / "segmentation" / f"{name}_512_ade20k.py"
    before, cfg = resolve(path), resolve(path, {"image_size": value})
    height, width = to_2tuple(value)
    resize, crop = (Compose(cfg.train_pipeline).transforms[i] for i in (0, 1))
    assert (crop.crop_size, MODELS.build(cfg.data_preprocessor).size) == ((height, width), (height, width))
    assert resize.scale == Compose(cfg.test_pipeline).transforms[0].scale == (4 * height, width)
    assert Compose(before.train_pipeline).transforms[0].scale == (2048, 512)
    if name.startswith("upernet"):
        windows = {place: _test_options(**found.model.test_cfg) for place, found in enumerate((before, cfg))}
        assert [one["crop_size"] for one in windows.values()] == [(512, 512), (height, width)]
        assert [one["stride"] for one in windows.values()] == [(341, 341), (height * 2 // 3, width * 2 // 3)]


CIFAR, UPERNET = "cifar/soft_plus_pico_cifar10", "segmentation/upernet_soft_norm_small_512_ade20k"


CHILD_VALUES = [
    (CIFAR, "data_root", "/data"),
    (UPERNET, "data_root", "/data"),
    (CIFAR, "image_size", 48),
    ("soft_tiny", "image_size", (192, 160)),
    ("demo/soft_pico_shapes", "image_size", 32),
    (UPERNET, "image_size", (256, 192)),
    ("soft_tiny", "num_classes", 7),
    ("demo/soft_pico_shapes", "num_classes", 12),
    (UPERNET, "num_classes", 4),
    ("detection/retinanet_soft_pico_shapes", "num_classes", 4),
    ("finetune/soft_tiny_imagefolder", "val_fraction", 0.1),
]


@pytest.mark.parametrize(("config", "name", "value"), CHILD_VALUES)
def test_a_value_of_a_child_counts_as_an_option_does(tmp_path, config, name, value):
    """Also over that of another child, and an option over both."""
    base, path = CONFIGS / f"{config}.py", tmp_path / "c.py"
    expected = resolve(base, {name: value}, work_dir="w").to_dict()
    other = {"data_root": "/other", "val_fraction": 0.2}.get(name, 96)
    low = written(tmp_path / "low.py", f"_base_ = '{base}'\n{name} = {other!r}\n")
    for own, options in ((value, {}), (other, {name: value})):
        child = written(path, f"_base_ = '{low}'\n{name} = {own!r}\n")
        assert resolve(child, options, work_dir="w").to_dict() == expected


def test_a_value_of_a_child_in_pure_python(tmp_path):
    model = "dict(type='TimmTrainClassifier', model_name='soft_pico', img_size=image_size)"
    written(tmp_path / "low.py", f"sides = [64]\nimage_size = sides[0]\nmodel = {model}\n")
    text = "from mmengine.config import read_base\nwith read_base():\n    from .low import *\nimage_size = 32\n"
    assert resolve(written(tmp_path / "c.py", text)).model.img_size == 32


CONTRADICTIONS = [
    (DEMO, "", {"train_dataloader.dataset.size": 32}, "image_size"),
    (DEMO, "", {"image_size": 32, "model.img_size": 96}, "image_size"),
    (DEMO, "image_size = 32\nmodel = dict(img_size=96)", {}, "image_size"),
    # Nothing takes it, or a path stays behind.
    ("low.py", "data_root = 'b'", {}, "data_root"),
    ("low.py", "", {"data_root": "b"}, "data_root"),
    ("low.py", "data_root = 'b'\ntrain_dataloader = dict(dataset=dict(data_root='b'))", {}, "val_evaluator.file"),
]


@pytest.mark.parametrize(("base", "child", "options", "named"), CONTRADICTIONS)
def test_values_that_contradict_each_other(tmp_path, base, child, options, named):
    written(tmp_path / "low.py", "data_root = 'a'\nval_evaluator = dict(file='a/b')\n")
    with pytest.raises(ValueError, match=named):
        resolve(written(tmp_path / "c.py", f"_base_ = '{base}'\n{child}\n"), options)


def test_words_are_no_paths_in_a_data_root_of_here(tmp_path):
    written(tmp_path / "low.py", f"_base_ = '{FINETUNE}'\ndata_root = '.'\nnum_classes = 2\n")
    cfg = resolve(written(tmp_path / "c.py", "_base_ = 'low.py'\ndata_root = 'b'\n"))
    assert cfg.train_dataloader.dataset.data_root == "b"


def test_image_size_of_a_test_alone():
    assert sizes_of(resolve(DEMO, {"test_dataloader.dataset.size": 96})) == [64, 64, 64, 96]


@pytest.mark.parametrize(("name", "size"), [("test_resnet", None), ("test_vit", 96), ("soft_pico", 96)])
def test_models_of_any_size_are_told_none(name, size, tmp_path):
    timm.models.save_for_hf(timm.create_model(name), tmp_path)
    for each in (name, f"local-dir:{tmp_path}"):
        model = resolve(CONFIGS / "soft_tiny.py", {"image_size": 96, "model.model_name": each}).model
        assert model.get("img_size") == size


COUNTS = [({}, 1000, 1000), ({"num_classes": 7}, 7, 7), ({"model.num_classes": 7}, 7, 7)]
COUNTS += [({"num_classes": 7, "data_preprocessor.num_classes": 9}, 7, 9)]


@pytest.mark.parametrize(("options", "model", "batches"), COUNTS)
def test_number_of_classes_is_one_value(options, model, batches):
    cfg = resolve(CONFIGS / "soft_tiny.py", options)
    assert (cfg.num_classes, cfg.model.num_classes, cfg.data_preprocessor.num_classes) == (model, model, batches)


@DATASETS.register_module()
class OwnTree(ImageTree):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize("option", ["num_classes", "model.num_classes"])
@pytest.mark.parametrize("name", ["detection/retinanet_soft_pico_shapes", "segmentation/fpn_soft_norm_tiny_512_ade20k"])
def test_number_of_classes_of_detectors_and_segmentors(name, option):
    assert resolve(CONFIGS / f"{name}.py", {option: 4}).model.num_classes == 4


@DATASETS.register_module()
class Nameless(BaseDataset):
    def load_data_list(self) -> list[dict]:
        return [{"gt_label": 0}]


def repeated(kind: str) -> dict:
    return {"type": "RepeatDataset", "times": 2, "dataset": {"type": kind}}


@pytest.mark.parametrize("dataset", [{"type": "OwnTree"}, repeated("OwnTree"), repeated("ImageTree")])
def test_classes_are_counted_in_the_training_data(tree, dataset, tmp_path):
    options = {"data_root": str(tree), "train_dataloader.dataset": {"_delete_": True, **dataset}}
    cfg = resolve(FINETUNE, options)
    assert (cfg.num_classes, cfg.model.num_classes, cfg.data_preprocessor.num_classes) == (3, 3, 3)
    assert "num_classes" not in resolve(FINETUNE).model
    # Those that are given come first, then those of a checkpoint.
    assert resolve(FINETUNE, {**options, "model.num_classes": 5}).model.num_classes == 5
    assert resolve(FINETUNE, options, tested=ModelSpec(cfg={"label_names": "abcd"})).model.num_classes == 4
    # A saved config may be pointed at other data.
    cfg.num_classes = cfg.model.num_classes = cfg.data_preprocessor.num_classes = 7
    cfg.dump(tmp_path / "saved.py")
    saved = resolve(tmp_path / "saved.py", {"num_classes": None})
    assert (saved.num_classes, saved.model.num_classes, saved.data_preprocessor.num_classes) == (3, 3, 3)
    with pytest.raises(ValueError, match="num_classes must be set for a Nameless"):
        resolve(FINETUNE, options | {"train_dataloader.dataset": {"_delete_": True, "type": "Nameless"}})


NOTED = ([51.0, 102.0, 153.0], 0.9, "squash")
STARTS = [
    ("soft_tiny", {"load_from": "timm://test_vit"}, {}, ([127.5] * 3, 0.95, "center")),
    ("soft_tiny", {"load_from": "timm://soft_pico.shapes"}, {"crop_pct": 0.8}, ([127.5] * 3, 0.8, "center")),
    ("soft_tiny", {"load_from": "noted.pth", "model.model_name": "soft_pico"}, {}, NOTED),
    ("soft_tiny", {"load_from": "plain.pth"}, {}, ([123.675, 116.28, 103.53], 0.875, "center")),
    ("soft_tiny", {}, {}, ([123.675, 116.28, 103.53], 0.875, "center")),
    ("soft_tiny", {"model.model_name": "test_vit", "model.pretrained": True}, {}, ([127.5] * 3, 0.95, "center")),
    (UPERNET, {"model.backbone.checkpoint_path": "~/noted.pth"}, {}, NOTED),
]


@pytest.mark.parametrize(("config", "options", "crop", "expected"), STARTS)
def test_images_are_prepared_as_the_start_weights_note(tmp_path, monkeypatch, config, options, crop, expected):
    cfg = {"mean": (0.2, 0.4, 0.6), "crop_pct": 0.9, "crop_mode": "squash"}
    notes = ModelSpec("soft_pico.shapes", {"newton_iters": 12}, cfg)
    for name, meta in (("noted", {NOTES_KEY: notes.to_dict()}), ("plain", {})):
        torch.save({"state_dict": {"a": torch.zeros(1)}, "meta": meta}, tmp_path / f"{name}.pth")
    pipeline = [{"type": "LoadedImage"}, {"type": "TimmEvalCrop", **crop}, {"type": "PackInputs"}]
    messages, options = [], {**options, "val_dataloader.dataset.pipeline": pipeline}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    cfg = resolve(CONFIGS / f"{config}.py", options, notify=messages.append)
    shown = cfg.val_dataloader.dataset.pipeline[1]
    assert (cfg.data_preprocessor.mean, shown.crop_pct, shown.crop_mode) == expected
    assert len(messages) == (config != "soft_tiny" or len(options) > 1)
    # Those of a model of another name are left out.
    assert cfg.model.get("newton_iters") == (12 if cfg.model.get("model_name") == "soft_pico" else None)


DATA = """
data_root = {root!r}
_tree = dict(type="ImageTree", split="train")
train_dataloader = dict(dataset=dict(type="ConcatDataset", datasets=[
    dict(type="RepeatDataset", dataset=_tree),
    dict(type="ImageTree", data_root="/own"),
    dict(type="soft_vit.ImageTree"),
    dict(type="CustomDataset"),
]))
val_dataloader = dict(dataset=dict(type="OwnTree"))
test_dataloader = dict(dataset=dict(type="ShapesDataset", length=4))
"""


def test_a_held_out_part_instead_of_validation_images(tmp_path):
    given = {"val_fraction": 0.1, "num_classes": 3, "load_from": None, "test_dataloader.dataset.split": "test"}
    cfg = resolve(FINETUNE, given)
    cfg.dump(tmp_path / "saved.py")
    for found in (cfg, resolve(tmp_path / "saved.py")):
        parts = {split: found[f"{split}_dataloader"].dataset for split in ("train", "val", "test")}
        assert {split: part.get("held_out") for split, part in parts.items()} == dict(train=False, val=True, test=None)
        assert {split: part.split for split, part in parts.items()} == dict(train="train", val="train", test="test")
        assert parts["val"].val_fraction == 0.1


def test_data_root_reaches_data_sets_without_one(tmp_path):
    """A saved config is pointed at other data."""
    cfg = resolve(written(tmp_path / "c.py", DATA.format(root="/data")))
    cfg.dump(tmp_path / "saved.py")
    for given, root in ((cfg, "/data"), (resolve(tmp_path / "saved.py", {"data_root": 2024}), "2024")):
        first, second, *others = given.train_dataloader.dataset.datasets
        roots = [one.get("data_root") for one in (first.dataset, second, *others, given.val_dataloader.dataset)]
        assert roots == [root, "/own", root, root, root]
        assert "data_root" not in given.test_dataloader.dataset
    with pytest.raises(ValueError, match=r"val_evaluator\.ann_file"):
        resolve(CONFIGS / "mmdet" / "mask_rcnn_soft_pico_shapes.py", {"data_root": "/data"})


# How a run is built.


LOOPS = [
    ({}, {"type": "ExactEpochLoop", "max_epochs": 5, "val_interval": 1}),
    ({"by_epoch": False, "max_iters": 40}, {"type": "ExactIterLoop", "max_iters": 40, "val_interval": 1}),
    ({"_delete_": True, "by_epoch": False, "max_iters": 5}, {"type": "ExactIterLoop", "max_iters": 5}),
    ({"_delete_": True, "type": "EpochBasedTrainLoop"}, {"type": "EpochBasedTrainLoop"}),
]


@pytest.mark.parametrize(("options", "loop"), LOOPS)
def test_loop(options, loop):
    cfg = resolve(DEMO, {"train_cfg": options})
    assert cfg.train_cfg == loop
    assert cfg.default_hooks.checkpoint.get("by_epoch", True) == (loop["type"] != "ExactIterLoop")


def test_hooks_are_dropped_and_workers_shielded():
    cfg = resolve(DEMO, {"default_hooks.watch": None, "default_hooks.timer": None, "train_dataloader.num_workers": 2})
    assert "watch" not in cfg.default_hooks
    assert cfg.default_hooks.timer is None
    assert cfg.train_dataloader.worker_init_fn.type == "shield_worker"
    assert "worker_init_fn" not in cfg.val_dataloader


def test_a_hook_that_every_run_has_is_added_once():
    cfg = resolve(DEMO, {"custom_hooks": [{"type": "StopHook"}, {"type": "soft_vit.ThroughputHook"}]})
    assert {"stop", "throughput"}.isdisjoint(cfg.default_hooks)
    assert cfg.default_hooks.weights.type == "WeightsHook"


def test_options_replace_a_folder_in_each_entry(tmp_path):
    """Then none reads the file's own value, which it sets over that of its base."""
    path = tmp_path / "c.py"
    text = f"_base_ = '{FINETUNE}'\ndata_root = '{{{{$PHOTOS:photos}}}}'\nnum_classes = 3\n"
    places = {f"{split}_dataloader.dataset.data_root": "others" for split in ("train", "val", "test")}
    assert resolve(written(path, text), places).train_dataloader.dataset.data_root == "others"
    # Also one that comes from the environment, in an entry of the file.
    text += "train_dataloader = dict(dataset=dict(data_root=data_root))\n"
    cfg = resolve(written(path, text), {"data_root": "others"})
    assert cfg.train_dataloader.dataset.data_root == "others"


WRAPPERS = [
    ({}, {"dtype": "bfloat16"}),
    ({"type": "AmpOptimWrapper", "loss_scale": 8.0}, {"dtype": "bfloat16"}),
    ({"type": "mmengine.AmpOptimWrapper", "dtype": "float16"}, {"dtype": "float16"}),
]


@pytest.mark.parametrize(("own", "switched"), WRAPPERS)
def test_amp_keeps_float16(tmp_path, own, switched):
    cfg = resolve(written(tmp_path / "c.py", f"optim_wrapper = {own}"), amp=True)
    assert cfg.optim_wrapper == {"type": "SafeOptimWrapper", **switched}


SCALINGS = [
    (8, {"batch_size": 4}, {}, 2),
    (2, {"batch_size": 4}, {"accumulative_counts": 6}, 3),
    (1, {"batch_size": 4, "batch_sampler": {"type": "BatchSampler", "batch_size": 32}}, {}, 2),
]


@pytest.mark.parametrize(("processes", "loader", "wrapper", "factor"), SCALINGS)
def test_learning_rate_and_its_bounds(monkeypatch, processes, loader, wrapper, factor):
    """Launchers differ in the variables that tell the number of processes."""
    monkeypatch.setattr(machine, "get_world_size", lambda: processes)

    def config(lr: float, enable: bool, batch: int) -> Config:
        schedulers = [
            {"type": "LinearLR", "start_factor": 0.05},
            {"type": "CosineAnnealingLR", "eta_min": 1e-2 * lr},
            {"type": "OneCycleLR", "eta_max": 10 * lr},
            {"type": "ReduceOnPlateauLR", "min_value": 1e-3 * lr},
            {"type": "TimmLR", "sched": "cosine", "min_lr": 1e-3 * lr, "warmup_lr": 1e-5 * lr},
            {"type": "CosineAnnealingParamScheduler", "param_name": "weight_decay", "eta_min": 0.3},
        ]
        read = {"train_dataloader": loader, "auto_scale_lr": {"enable": enable, "base_batch_size": batch}}
        wrapped = {"optimizer": {"type": "AdamW", "lr": lr}, **wrapper}
        return Config({**read, "param_scheduler": schedulers, "optim_wrapper": wrapped})

    scaled = config(1.0, enable=True, batch=16)
    # timm's default is a rate as well.
    assert scaled.param_scheduler[4].pop("warmup_lr") == 1e-5
    machine.scale_learning_rate(scaled)
    # Neither MMEngine nor a run of the saved config must scale once more.
    assert scaled.to_dict() == config(factor, enable=False, batch=16 * factor).to_dict()
    del scaled.optim_wrapper.optimizer["lr"]
    with pytest.raises(ValueError, match=r"optimizer\.lr"):
        machine.scale_learning_rate(scaled)
