"""Weights that find their place in another model, and stages that do not move."""

import copy
from functools import partial

import pytest
import timm
import torch
from engine.runs import CONFIGS, NARROW, NARROW_MODEL, on_images
from mmengine.registry import MODELS
from torch import nn

from soft_vit.engine import TimmTrainClassifier, train
from soft_vit.engine.config import resolve
from soft_vit.engine.models.finetune import freeze_stages
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.weights.load import fit


def small(name: str = "soft_pico", **options) -> nn.Module:
    return timm.create_model(name, **{"num_classes": 10, "img_size": 64, **NARROW, **options}).eval()


@pytest.fixture(scope="module")
def source() -> nn.Module:
    torch.manual_seed(1)
    return small()


VIT, RESNET = (partial(timm.create_model, f"test_{name}") for name in ("vit", "resnet"))


HEADS = [
    (small, 10, True, {}, []),
    (small, 3, True, {}, [("10 classes", "3 classes")]),
    (small, 10, False, {}, [("10 classes",)]),
    (VIT, 3, True, {"img_size": 96}, [("pos_embed",), ("10 classes", "3 classes")]),
    (RESNET, 3, True, {}, [("10 classes", "3 classes")]),
]


@pytest.mark.parametrize(("build", "classes", "head", "size", "said"), HEADS)
def test_head(build, classes, head, size, said):
    source, model = build(num_classes=10), build(num_classes=classes, **size)
    name = model.pretrained_cfg["classifier"]
    fresh = {key: value.clone() for key, value in model.state_dict().items()}
    given = {key: value for key, value in source.state_dict().items() if head or not key.startswith(name)}
    weights, report = fit({"state_dict": given, "meta": {}}, model)
    for texts, sentence in zip(said, report.changes, strict=True):
        assert all(text in sentence for text in texts)
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert missing == ([f"{name}.weight", f"{name}.bias"] if said else [])
    for key, value in model.state_dict().items():
        assert (size and key == "pos_embed") or torch.equal(value, (fresh if key in missing else given)[key]), key


@pytest.mark.parametrize("in_chans", [1, 4])
def test_other_channels(source, in_chans):
    model = small(in_chans=in_chans)
    weights, report = fit(source.state_dict(), model)
    assert "stages.0.patch_embed.0.conv.weight" in report.changes[0]
    model.load_state_dict(weights)
    theirs = source.stages[0].patch_embed[0].conv.weight
    # timm's rule: the sum for one channel, otherwise the three in turn, together as strong as before.
    expected = theirs.sum(1, keepdim=True) if in_chans == 1 else theirs[:, [0, 1, 2, 0]] * 3 / 4
    torch.testing.assert_close(model.stages[0].patch_embed[0].conv.weight, expected)


FROZEN = [
    ("soft_pico", NARROW, 0, ("stages.0.patch_embed.", "stages.0.pos_embed")),
    ("soft_pico", NARROW, 4, ("stages.",)),
    ("test_resnet", {}, 1, ("conv1.", "bn1.", "layer1.")),
    ("test_vit", {}, 2, ("cls_token", "pos_embed", "patch_embed.", "blocks.0.", "blocks.1.")),
]


@pytest.mark.parametrize(("name", "options", "count", "frozen"), FROZEN)
def test_what_is_frozen(name, options, count, frozen):
    model = timm.create_model(name, **options)
    freeze_stages(model, count)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad != name.startswith(frozen), name


@pytest.mark.parametrize("count", [-1, 5])
def test_stages_that_the_model_does_not_have(count):
    with pytest.raises(ValueError, match=str(count)):
        freeze_stages(small(), count)


def classifier(**options) -> TimmTrainClassifier:
    return TimmTrainClassifier("soft_pico", **{"num_classes": 10, "img_size": 32, **NARROW, **options})


def test_frozen_stages_stay_in_eval():
    """Also in a copy, as an average of weights is."""
    model = copy.deepcopy(classifier(frozen_stages=2, drop_path_rate=0.5)).eval()
    model.train()
    stages = model.model.stages
    assert not any(module.training for stage in stages[:2] for module in stage.modules())
    assert all(module.training for stage in stages[2:] for module in stage.modules())
    # BatchNorm may be replaced after it was frozen.
    model = TimmTrainClassifier("test_resnet", num_classes=3, frozen_stages=1)
    assert not nn.SyncBatchNorm.convert_sync_batchnorm(model).train().model.bn1.training


def test_pretrained_weights_survive_the_start_of_a_run(source, tmp_path):
    torch.save(source.state_dict(), tmp_path / "source.pth")
    overlay = {"file": str(tmp_path / "source.pth"), "num_classes": 10}
    model = classifier(pretrained=True, pretrained_cfg_overlay=overlay, img_size=64)
    model.init_weights()
    torch.testing.assert_close(model.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_a_folder_from_a_checkpoint(source, tree, tmp_path, capsys):
    torch.save({"state_dict": source.state_dict(), "meta": {}}, tmp_path / "source.pth")
    options = on_images(tree, batch=8, size=48) | NARROW_MODEL | {"model.frozen_stages": 1}
    path, start = CONFIGS / "finetune" / "soft_tiny_imagefolder.py", {"load_from": str(tmp_path / "source.pth")}
    result = train(path, work_dir=tmp_path / "run", options={**options, **start}, auto_scale_lr=True)
    assert result.images == 12
    assert "stages.0.pos_embed" in next(tmp_path.glob("run/*/*.log")).read_text()
    # 8 images of the 64 that 5e-4 belongs to.
    assert "6.25e-05" in capsys.readouterr().out
    saved = load_checkpoint_file(result.checkpoint)
    expected, _ = fit(source.state_dict(), small(num_classes=3, img_size=48))
    for name, value in saved["state_dict"].items():
        if name.startswith("stages.0."):
            assert torch.equal(value, expected[name]), name
    assert saved["state_dict"]["head.weight"].shape == (3, 32)
    assert not torch.equal(saved["state_dict"]["stages.3.pos_embed"], expected["stages.3.pos_embed"])
    rates = {round(group["initial_lr"] * 64 / 8 / 5e-4, 6) for group in saved["optimizer"]["param_groups"]}
    assert rates == {0.75**i for i in range(4)}


@pytest.mark.parametrize("path", [*CONFIGS.glob("finetune/*.py"), *CONFIGS.glob("distill/*.py")], ids=lambda p: p.stem)
def test_configs_describe_a_model(path):
    config = resolve(path, {"num_classes": 5})
    with torch.device("meta"):
        model = MODELS.build({**config.model, "data_preprocessor": dict(config.data_preprocessor)})
    size = next(step.img_size for step in config.test_dataloader.dataset.pipeline if "img_size" in step)
    assert model.model.img_size == (size, size)
