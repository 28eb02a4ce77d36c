"""Backbones: maps of any model, their weights, and MMDetection's and MMSegmentation's own."""

import pytest
import timm
import torch
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample
from models.zoo.families import SMALL

from soft_vit.dense import SOFT
from soft_vit.dense.features import TimmFeatures
from soft_vit.dense.segmentation import TimmSegmentor
from soft_vit.engine.optim.optim_constructor import TimmOptimWrapperConstructor

# Families of this package, one of each kind of feature pyramid that timm makes, and the backbone of configs.
BODIES = [
    *[(TimmFeatures, *family, (72, 104)) for family in SMALL.values() if "embed_dims" in family[1]],
    *[(TimmFeatures, name, {}, (72, 104)) for name in ("resnet18", "convnext_atto", "mobilenetv3_small_050")],
    (TimmFeatures, "swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1), "embed_dim": 24}, (72, 104)),
    (SOFT, "soft_pico", {}, (97, 203)),
    (SOFT, "soft_pico", {"out_indices": (1, 3)}, (333, 70)),
    (SOFT, "soft_pico", {"out_indices": (3,)}, (64, 64)),
    (SOFT, "soft_pico", {"out_indices": (0, 2)}, (64, 96)),
]


@pytest.mark.parametrize(("kind", "name", "options", "size"), BODIES)
def test_any_model_gives_a_pyramid(kind, name, options, size):
    features = kind(name, **options)
    maps = features(torch.randn(2, 3, *size))
    assert isinstance(maps, tuple) == (kind is SOFT)
    assert features.reductions == [4 << index for index in options.get("out_indices", range(4))]
    for m, channels, stride in zip(maps, features.channels, features.reductions, strict=True):
        assert m.shape[:2] == (2, channels)
        # Some round down, others up.
        assert all(side // stride <= found <= -(-side // stride) for side, found in zip(size, m.shape[2:], strict=True))
        assert m.is_contiguous()
    # A mean over channels would cancel behind a LayerNorm.
    sum((m * torch.randn_like(m)).sum() for m in maps).backward()
    assert [name for name, p in features.named_parameters() if p.grad is None] == []


def test_maps_come_in_the_order_of_the_stages():
    features = TimmFeatures("soft_pico", out_indices=(3, 1, 3))
    assert [m.shape[1] for m in features(torch.randn(1, 3, 64, 64))] == features.channels == [64, 160]


# The first stage of each is 0 or 1.
STAGES = [("soft_pico", "stages.{}.blocks", 0), ("resnet18", "layer{}.", 1), ("convnext_atto", "stages_{}.", 0)]


FROZEN = [(*STAGES[0], -1), (*STAGES[0], 2), (*STAGES[1], 2), (*STAGES[2], 0)]


@pytest.mark.parametrize(("name", "stage", "first", "frozen"), FROZEN)
def test_frozen_stages_stay_out_of_training(name, stage, first, frozen):
    features = TimmFeatures(name, frozen_stages=frozen, norm_eval=True).train()
    parameters = dict(features.body.named_parameters())
    for i in range(4):
        trained = {p.requires_grad for key, p in parameters.items() if stage.format(i + first) in key}
        assert trained == {i >= frozen}
    assert all(p.requires_grad for p in parameters.values()) == (frozen == -1)
    assert not any(m.training for m in features.modules() if isinstance(m, torch.nn.BatchNorm2d))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "local_vit_tiny_patch16"])
def test_a_plain_vit_takes_images_of_any_size(name):
    features = TimmFeatures(name, depth=3, out_indices=(0, 2)).eval()
    assert [tuple(m.shape) for m in features(torch.randn(1, 3, 97, 203))] == [(1, 192, 7, 13)] * 2
    whole = timm.create_model(name, depth=3).eval()
    features.load_weights(whole.state_dict())
    x = torch.randn(1, 3, 224, 224)
    last = whole.forward_intermediates(x, intermediates_only=True)[-1]
    torch.testing.assert_close(features(x)[-1], features.out_norms[-1](last))


def test_layer_decay_counts_the_layers_of_the_body():
    """0.5 for each of stem and blocks below the heads; position embeddings and vectors without weight decay."""
    paramwise_cfg, optimizer = {"layer_decay": 0.5}, {"type": "SGD", "lr": 1.0, "weight_decay": 0.1}
    construct = TimmOptimWrapperConstructor({"optimizer": optimizer}, paramwise_cfg)
    model = TimmSegmentor({"model_name": "vit_tiny_patch16_224", "depth": 3}, {"channels": 16}, 3)
    groups = construct(model).optimizer.param_groups
    found = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    body, part = model.backbone.body.model, {name: found[id(p)] for name, p in model.named_parameters()}
    blocks = [part[f"backbone.body.model.blocks.{i}.mlp.fc1.weight"] for i in range(3)]
    assert blocks == [(0.125, 0.1), (0.25, 0.1), (0.5, 0.1)]
    assert found[id(body.pos_embed)] == (0.0625, 0.0)
    assert (part["head.conv.weight"], part["head.conv.bias"]) == ((1.0, 0.1), (1.0, 0.0))
    with pytest.raises(ValueError, match="group_matcher"):
        construct(TimmFeatures("resnet18"))


# A window of 8 on a map of 80 x 80 gives 100.
BOUNDS = [({}, 49), ({"max_bottleneck": [5, 9]}, 45), ({"max_bottleneck": 6}, 36), ({"max_bottleneck": None}, 100)]


@pytest.mark.parametrize(("arguments", "tokens"), BOUNDS)
def test_the_number_of_bottleneck_tokens_is_bounded(arguments, tokens):
    backbone = SOFT("soft_pico", out_indices=(0,), **arguments)
    norm = backbone.body["model"].stages[0].blocks[0].attn.sample_norm
    seen = []
    norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numel() // 32))
    backbone(torch.randn(1, 3, 320, 320))
    assert seen == [tokens]


def pretrained(path, **options) -> dict:
    return dict(type="Pretrained", checkpoint=str(path), **options)


# A path of weights for `TimmFeatures`; the round trip of files has pyramids, too.
STARTS = [("convnext_atto", None), ("soft_pico", None), ("soft_pico", ""), ("soft_pico", "model.")]


@pytest.mark.parametrize(("name", "prefix"), STARTS)
def test_weights_of_a_classifier_give_its_maps(name, prefix, tmp_path):
    """A file comes before published weights."""
    classifier, path = timm.create_model(name, num_classes=7).eval(), tmp_path / "weights.pth"
    weights = {(prefix or "") + name: weight for name, weight in classifier.state_dict().items()}
    torch.save({"state_dict": {**weights, **({"neck.weight": torch.zeros(3)} if prefix else {})}}, path)
    if prefix is None:
        recorded = {"pretrained": name == "soft_pico"}
        backbone = TimmFeatures(name, checkpoint_path=str(path), out_norm=False, **recorded).eval()
    else:
        backbone = SOFT(name, out_norm=False, init_cfg=[pretrained(path, prefix=prefix)]).eval()
    backbone.init_weights()
    x = torch.randn(1, 3, 64, 96)
    expected = classifier.forward_intermediates(x, intermediates_only=True)
    torch.testing.assert_close(list(backbone(x)), expected[-4:], rtol=0, atol=0)


def test_weights_of_a_detector_fit_its_backbone_or_are_refused(tmp_path):
    donor, path = SOFT("soft_pico"), tmp_path / "detector.pth"
    torch.nn.init.constant_(donor.out_norms[2].weight, 3.0)
    torch.save({"state_dict": {f"backbone.{k}": v for k, v in donor.state_dict().items()}}, path)
    backbone = SOFT("soft_pico", init_cfg=pretrained(path, prefix="backbone."))
    backbone.init_weights()
    torch.testing.assert_close(backbone.state_dict(), donor.state_dict(), rtol=0, atol=0)
    cases = [
        (pretrained(tmp_path / "lost.pth"), "lost.pth"),
        (pretrained(path), "a detector"),
        (pretrained(path, prefix="encoder."), "'encoder.'"),
        (pretrained(path, prefix="backbone."), "missing"),
    ]
    for init_cfg, message in cases:
        backbone = SOFT("soft_pico", depths=(1, 1, 3, 1), init_cfg=init_cfg)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            backbone.init_weights()


def test_an_arch_that_is_no_pyramid_is_named():
    with pytest.raises(ValueError, match="resnet18"):
        SOFT("resnet18")


@pytest.mark.parametrize("name", ["SOFT", "soft_vit.SOFT"])
def test_mmpretrain_trains_with_it(name):
    head = dict(type="LinearClsHead", num_classes=5, in_channels=160, topk=(1,))
    backbone, neck = dict(type=name, arch="soft_pico", out_indices=(3,)), dict(type="GlobalAveragePooling")
    model = MODELS.build(dict(type="ImageClassifier", backbone=backbone, neck=neck, head=head))
    model.init_weights()
    samples = [DataSample().set_gt_label(label) for label in (1, 4)]
    model.loss(torch.randn(2, 3, 64, 96), samples)["loss"].backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
