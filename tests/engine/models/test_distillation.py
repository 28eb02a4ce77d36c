"""The loss against its formula, the teacher's images, and its place outside of the student."""

import copy
import math

import pytest
import timm
import torch
from mmpretrain.structures import DataSample
from torch import nn

from soft_vit.engine import DistillClassifier
from soft_vit.engine.models.distillation import Teacher, build_teacher, teacher_loss

SMALL = dict(depths=(1, 1, 1, 1), img_size=32)
NOT_NORMALISED = (torch.zeros(3), torch.ones(3))


@pytest.fixture(scope="module")
def teacher_file(tmp_path_factory):
    """A random model of 10 classes whose answers depend on the image."""
    torch.manual_seed(5)
    model = timm.create_model("soft_pico", num_classes=10, **SMALL)
    nn.init.normal_(model.head.weight, std=0.5)
    path = tmp_path_factory.mktemp("teacher") / "teacher.pth"
    torch.save(model.state_dict(), path)
    return path


def student(teacher_file, **options) -> DistillClassifier:
    teacher = dict(model_name="soft_pico", checkpoint=str(teacher_file), **SMALL)
    preprocessor = dict(mean=[127.5] * 3, std=[64.0] * 3)
    options = dict(model_name="soft_pico", num_classes=10, **SMALL) | options
    return DistillClassifier(teacher=teacher, data_preprocessor=preprocessor, **options)


def softmax(row: list[float], tau: float) -> list[float]:
    powers = [math.exp(value / tau) for value in row]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize(("kind", "tau"), [("hard", 1.0), ("soft", 0.5), ("soft", 3.0)])
def test_loss_is_the_formula(kind, tau):
    ours, theirs = torch.randn(2, 5, 7, dtype=torch.float64).mul(3).unbind()
    expected = 0.0
    for z_s, z_t in zip(ours.tolist(), theirs.tolist(), strict=True):
        if kind == "hard":
            expected -= math.log(softmax(z_s, 1.0)[z_t.index(max(z_t))])
        else:
            pairs = zip(softmax(z_t, tau), softmax(z_s, tau), strict=True)
            expected += tau**2 * sum(p * math.log(p / q) for p, q in pairs)
    actual = teacher_loss(ours, theirs, kind, tau)
    # A few roundings for each of the terms, none of which is above 3 * 3 * 7.
    torch.testing.assert_close(actual.item(), expected / 5, rtol=0, atol=1e-13)


def test_sum_of_both_losses(teacher_file):
    """The teacher, which is not part of the student, gets no gradients and stays in eval."""
    model = student(teacher_file, distillation="soft", alpha=0.3, tau=2.0).train()
    teacher = model.teacher
    assert copy.deepcopy(model).teacher is teacher
    assert not any(isinstance(module, Teacher) for module in model.modules())
    assert not any(module.training for module in model.teacher.modules())
    model.eval()
    x = torch.randn(3, 3, 32, 32)
    labels = torch.tensor([1, 9, 4])
    losses = model.loss(x, [DataSample().set_gt_label(label) for label in labels])
    logits, seen = model(x), model.teacher(x)
    assert not seen.requires_grad
    expected = 0.7 * nn.functional.cross_entropy(logits, labels) + 0.3 * teacher_loss(logits, seen, "soft", 2.0)
    total, logged = model.parse_losses(losses)
    torch.testing.assert_close(total, expected)
    assert logged["loss"] == total
    assert {"loss_labels", "loss_teacher", "train_acc"} < logged.keys()


def test_a_head_for_the_teacher_learns_from_it_alone(teacher_file):
    model = student(teacher_file, model_name="care_s0").train()
    losses = model.loss(torch.randn(3, 3, 32, 32), [DataSample().set_gt_label(label) for label in (1, 9, 4)])
    for loss, (own, other) in {"loss_labels": ("head", "dist_head"), "loss_teacher": ("dist_head", "head")}.items():
        model.zero_grad()
        losses[loss].backward(retain_graph=True)
        assert model.model.get_submodule(own).fc.weight.grad.any()
        assert model.model.get_submodule(other).fc.weight.grad is None


@pytest.mark.parametrize("size", [(32, 32), (48, 40)])
def test_teacher_sees_its_own_kind_of_image(size):
    pixels = torch.rand(2, 3, 32, 32) * 255
    mean, std = torch.tensor([120.0, 110.0, 100.0]), torch.tensor([60.0, 50.0, 40.0])
    teacher = Teacher(timm.create_model("soft_pico", **SMALL | dict(img_size=size)), mean, std, size)
    x = (pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    own_mean, own_std = (torch.tensor(teacher.model.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    expected = nn.functional.interpolate((pixels / 255 - own_mean) / own_std, size, mode="bicubic", antialias=True)
    torch.testing.assert_close(teacher.view(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(teacher(x), teacher.model(teacher.view(x)))


def test_size_that_a_teacher_was_trained_at(teacher_file, tmp_path):
    model = timm.create_model("soft_pico", num_classes=10, depths=(1, 1, 1, 1))
    torch.save(model.state_dict(), tmp_path / "at_224.pth")
    options = dict(model_name="soft_pico", checkpoint=str(tmp_path / "at_224.pth"), depths=(1, 1, 1, 1))
    assert build_teacher(options, 10, *NOT_NORMALISED).img_size == (224, 224)
    overlay = dict(input_size=(3, 48, 40), mean=(0.0, 0.5, 1.0), std=(1.0, 1.0, 0.5))
    teacher = build_teacher({**options, "pretrained_cfg_overlay": overlay}, 10, *NOT_NORMALISED)
    assert teacher.img_size == (48, 40)
    torch.testing.assert_close(teacher.view(torch.full((1, 3, 48, 40), 255.0))[0, :, 0, 0], torch.tensor([1, 0.5, 0]))


def test_a_test_needs_no_teacher():
    model = student("gone.pth").eval()
    assert model.predict(torch.randn(2, 3, 32, 32))[0].pred_score.shape == (10,)
    with pytest.raises(FileNotFoundError, match=r"gone\.pth"):
        model.init_weights()


UNUSABLE = [
    (dict(model_name="soft_pico", pretrained=True, checkpoint="{file}"), "checkpoint"),
    (dict(model_name="soft_pico", checkpoint="{file}", num_classes=7, **SMALL), "10 classes"),
]


@pytest.mark.parametrize(("options", "named"), UNUSABLE)
def test_teacher_that_cannot_be_used(teacher_file, options, named):
    options = {name: str(teacher_file) if value == "{file}" else value for name, value in options.items()}
    with pytest.raises(ValueError, match=named):
        build_teacher(options, 10, *NOT_NORMALISED)
