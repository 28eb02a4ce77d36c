import mmpretrain.models  # noqa: F401  registers its classes
import pytest
import timm
import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS as ROOT_MODELS
from mmpretrain.registry import MODELS as MMPRETRAIN_MODELS
from mmpretrain.structures import DataSample
from released import released_state_dict
from safetensors.torch import save_file

from soft_vit.dense import SOFT
from soft_vit.registry import MODELS


@pytest.mark.parametrize("registry", [ROOT_MODELS, MODELS, MMPRETRAIN_MODELS], ids=lambda registry: registry.scope)
@pytest.mark.parametrize("name", ["SOFT", "soft_vit.SOFT"])
def test_every_registry_knows_it(registry, name):
    backbone = registry.build(dict(type=name, arch="soft_pico"))
    assert isinstance(backbone, SOFT)
    assert isinstance(backbone, BaseModule)


@pytest.mark.parametrize(
    ("size", "out_indices"), [((97, 203), (0, 1, 2, 3)), ((333, 70), (1, 3)), ((64, 64), (3,)), ((64, 96), (0, 2))]
)
def test_a_tuple_of_contiguous_maps(size, out_indices):
    backbone = SOFT("soft_pico", out_indices=out_indices)
    maps = backbone(torch.randn(2, 3, *size))
    assert isinstance(maps, tuple)
    sides = [[-(-side // (4 << i)) for side in size] for i in out_indices]
    assert [list(m.shape) for m in maps] == [
        [2, (32, 64, 128, 160)[i], *side] for i, side in zip(out_indices, sides, strict=True)
    ]
    assert all(m.is_contiguous() for m in maps)
    # A mean over channels would cancel behind a LayerNorm.
    sum((m * torch.randn_like(m)).sum() for m in maps).backward()
    assert not [name for name, p in backbone.named_parameters() if p.grad is None]


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (dict(), 49),
        (dict(max_bottleneck=(5, 9)), 45),
        (dict(max_bottleneck=[5, 9]), 45),
        (dict(max_bottleneck=6), 36),
        # A window of 8 on a map of 80 x 80.
        (dict(max_bottleneck=None), 100),
    ],
)
def test_the_number_of_bottleneck_tokens_is_bounded(arguments, tokens):
    backbone = SOFT("soft_pico", **arguments)
    norm = backbone.body["model"].stages[0].blocks[0].attn.sample_norm
    seen = []
    norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numel() // 32))
    backbone(torch.randn(1, 3, 320, 320))
    assert seen == [tokens]


@pytest.mark.parametrize("arguments", [dict(arch="linear_pyramid_pico"), dict(attention="spatial_reduction")])
def test_attentions_without_bottleneck_tokens_serve_too(arguments):
    maps = SOFT(**dict(dict(arch="soft_pico"), **arguments))(torch.randn(1, 3, 97, 203))
    assert [tuple(m.shape[2:]) for m in maps] == [(25, 51), (13, 26), (7, 13), (4, 7)]


def pretrained(path, **options) -> dict:
    return dict(type="Pretrained", checkpoint=str(path), **options)


def maps_of_classifier(classifier: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return classifier.eval().forward_intermediates(x, intermediates_only=True)


@pytest.mark.parametrize("kind", ["timm.pth", "timm.safetensors", "run.pth", "mmpretrain.pth", "detector.pth"])
def test_weights_of_any_program_give_the_classifiers_maps(kind, tmp_path):
    classifier, path = timm.create_model("soft_pico", num_classes=7), tmp_path / kind
    weights, options = classifier.state_dict(), {}
    for buffer in weights.values():
        if buffer.is_floating_point():
            buffer += 0.1 * torch.rand_like(buffer)
    if kind == "timm.safetensors":
        save_file(weights, path)
    elif kind == "timm.pth":
        torch.save(weights, path)
    elif kind == "run.pth":
        torch.save({"state_dict": weights, "meta": {"epoch": 3}, "optimizer": {"state": {}}}, path)
    else:
        options["prefix"] = "model." if kind == "mmpretrain.pth" else "backbone."
        if kind == "detector.pth":
            donor = SOFT("soft_pico", out_norm=False)
            donor.load_weights(weights)
            weights = donor.state_dict()
        around = {options["prefix"] + name: weight for name, weight in weights.items()}
        torch.save({"state_dict": {**around, "neck.weight": torch.zeros(3)}}, path)
    backbone = SOFT("soft_pico", out_norm=False, init_cfg=pretrained(path, **options)).eval()
    backbone.init_weights()
    x = torch.randn(1, 3, 224, 224)
    for ours, theirs in zip(backbone(x), maps_of_classifier(classifier, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_released_checkpoint(tmp_path):
    path = tmp_path / "released.pth"
    torch.save({"model": released_state_dict()}, path)
    backbone = SOFT("soft_tiny", out_norm=False, init_cfg=[pretrained(path)]).eval()
    backbone.init_weights()
    classifier = timm.create_model("soft_tiny", pretrained=True, pretrained_cfg_overlay=dict(file=str(path)))
    x = torch.randn(1, 3, 224, 224)
    for ours, theirs in zip(backbone(x), maps_of_classifier(classifier, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_detector_passes_on_trained_norms_of_its_maps(tmp_path):
    donor, path = SOFT("soft_pico"), tmp_path / "detector.pth"
    torch.nn.init.constant_(donor.out_norms[2].weight, 3.0)
    torch.save({"state_dict": {f"backbone.{k}": v for k, v in donor.state_dict().items()}}, path)
    backbone = SOFT("soft_pico", init_cfg=pretrained(path, prefix="backbone."))
    backbone.init_weights()
    torch.testing.assert_close(backbone.state_dict(), donor.state_dict(), rtol=0, atol=0)


def write(path, weights) -> str:
    torch.save(weights, path)
    return str(path)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    other = write(tmp_path / "other.pth", timm.create_model("soft_tiny").state_dict())
    own = write(tmp_path / "own.pth", {f"backbone.{k}": v for k, v in SOFT("soft_pico").state_dict().items()})
    cases = [
        (pretrained(other), "do not fit"),
        (pretrained(tmp_path / "lost.pth"), "lost.pth"),
        (pretrained(own), "do not fit"),
        (pretrained(own, prefix="encoder."), "'encoder.'"),
        (pretrained(own, prefix="backbone."), "missing"),
    ]
    for init_cfg, message in cases:
        backbone = SOFT("soft_pico", depths=(1, 1, 3, 1), init_cfg=init_cfg)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            backbone.init_weights()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(arch="soft_huuge"), "soft_huge"),
        (dict(arch="soft_pico", no_such_option=1), "no_such_option"),
        (dict(arch="soft_pico", attention="softt"), "softt"),
        (dict(arch="soft_pico", frozen_stages=9), "frozen_stages"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SOFT(**arguments)


def test_mmpretrain_classifies_with_it():
    model = MMPRETRAIN_MODELS.build(
        dict(
            type="ImageClassifier",
            backbone=dict(type="SOFT", arch="soft_pico", out_indices=(3,)),
            neck=dict(type="GlobalAveragePooling"),
            head=dict(type="LinearClsHead", num_classes=5, in_channels=160, topk=(1,)),
        )
    )
    model.init_weights()
    samples = [DataSample().set_gt_label(label) for label in (1, 4)]
    losses = model.loss(torch.randn(2, 3, 64, 96), samples)
    losses["loss"].backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    assert model.predict(torch.randn(2, 3, 64, 96), samples)[0].pred_score.shape == (5,)
