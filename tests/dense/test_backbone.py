import mmpretrain.models  # noqa: F401  registers its classes
import pytest
import timm
import torch
from mmpretrain.registry import MODELS
from mmpretrain.structures import DataSample

from soft_vit.dense import SOFT


@pytest.mark.parametrize(
    ("size", "out_indices"), [((97, 203), (0, 1, 2, 3)), ((333, 70), (1, 3)), ((64, 64), (3,)), ((64, 96), (0, 2))]
)
def test_a_tuple_of_contiguous_maps(size, out_indices):
    backbone = SOFT("soft_pico", out_indices=out_indices)
    maps = backbone(torch.randn(2, 3, *size))
    assert isinstance(maps, tuple)
    widths = (32, 64, 128, 160)
    assert [list(m.shape) for m in maps] == [
        [2, widths[i], *(-(-side // (4 << i)) for side in size)] for i in out_indices
    ]
    assert all(m.is_contiguous() for m in maps)
    # A mean over channels would cancel behind a LayerNorm.
    sum((m * torch.randn_like(m)).sum() for m in maps).backward()
    assert not [name for name, p in backbone.named_parameters() if p.grad is None]


# A window of 8 on a map of 80 x 80 gives 100.
@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [({}, 49), ({"max_bottleneck": [5, 9]}, 45), ({"max_bottleneck": 6}, 36), ({"max_bottleneck": None}, 100)],
)
def test_the_number_of_bottleneck_tokens_is_bounded(arguments, tokens):
    backbone = SOFT("soft_pico", out_indices=(0,), **arguments)
    norm = backbone.body["model"].stages[0].blocks[0].attn.sample_norm
    seen = []
    norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numel() // 32))
    backbone(torch.randn(1, 3, 320, 320))
    assert seen == [tokens]


def pretrained(path, **options) -> dict:
    return dict(type="Pretrained", checkpoint=str(path), **options)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_weights_of_a_classifier_give_its_maps(prefix, tmp_path):
    classifier, path = timm.create_model("soft_pico", num_classes=7).eval(), tmp_path / "weights.pth"
    weights = {prefix + name: weight for name, weight in classifier.state_dict().items()}
    torch.save({"state_dict": {**weights, **({"neck.weight": torch.zeros(3)} if prefix else {})}}, path)
    backbone = SOFT("soft_pico", out_norm=False, init_cfg=[pretrained(path, prefix=prefix)]).eval()
    backbone.init_weights()
    x = torch.randn(1, 3, 224, 224)
    expected = classifier.forward_intermediates(x, intermediates_only=True)
    torch.testing.assert_close(backbone(x), tuple(expected), rtol=0, atol=0)


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
        (pretrained(path, prefix="encoder."), "state dict"),
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
