"""Classifiers, their notes, their names, and hooks that belong to a model."""

import copy
import itertools
from functools import partial
from types import SimpleNamespace

import mmpretrain
import pytest
import timm
import torch
from engine.runs import assert_same
from mmengine.config import Config
from mmengine.runner import CheckpointLoader
from mmpretrain.structures import DataSample
from PIL import Image
from stored import saved_bytes
from timm.models import save_for_hf
from torch import nn

from soft_vit.engine import FeatureRedrawHook, MesaClassifier, TimmTrainClassifier
from soft_vit.engine.models import model_index
from soft_vit.engine.models.notes import spec_of_run
from soft_vit.engine.models.timm_model import create_timm_model
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.layers.attention.performer import PerformerAttention
from soft_vit.predict import TimmPredictor
from soft_vit.weights import RECORDED_WEIGHTS
from soft_vit.weights.read import spec_of
from soft_vit.weights.spec import NOTES_KEY

# The switches of the classifier: what they change, and what they must not.


LABELS = (3, 7)


def build(**kwargs) -> TimmTrainClassifier:
    torch.manual_seed(0)
    model = TimmTrainClassifier("soft_pico", num_classes=10, img_size=32, depths=[1, 2, 1, 1], **kwargs)
    # Rounding then hides nothing: a bias before BatchNorm has a gradient of nothing else in fp32.
    return model.double().train()


def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def step(model: TimmTrainClassifier) -> dict[str, torch.Tensor]:
    """The loss and the gradients of all parameters."""
    model.zero_grad()
    samples = [DataSample().set_gt_label(label) for label in LABELS]
    loss = model(images(), samples, mode="loss")["loss"]
    loss.backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


SWITCHES = {"with_cp": True, "channels_last": True}
COMPILED = {"compile_model": {"backend": "eager", "fullgraph": True}}


@pytest.mark.parametrize("options", [SWITCHES, pytest.param(SWITCHES | COMPILED, marks=pytest.mark.slow)])
def test_switches_change_no_result_and_no_checkpoint(options):
    plain, switched = build(), build(**options)
    convolutions = [p for p in switched.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in convolutions)
    state = switched.state_dict()
    assert list(state) == list(plain.state_dict())
    plain.load_state_dict(state)
    # As an average of weights does.
    twin = copy.deepcopy(switched)
    expected = step(plain)
    for model in (switched, twin):
        # Other kernels add up in another order.
        torch.testing.assert_close(step(model), expected, rtol=1e-9, atol=1e-10)


def test_checkpointing_keeps_less():
    less, all_of_it = (saved_bytes(partial(build(with_cp=flag), images())) for flag in (True, False))
    assert less < all_of_it / 2


def test_soft_loss_needs_scores():
    """Ten images of ten classes, whose labels have the shape of scores after broadcasting."""
    model = build(loss={"type": "CrossEntropyLoss", "use_soft": True})
    x, labels = torch.randn(10, 3, 32, 32, dtype=torch.float64), torch.arange(10)
    samples = [DataSample().set_gt_label(label) for label in labels]
    with pytest.raises(ValueError, match="use_soft"):
        model(x, samples, mode="loss")
    scored = [DataSample().set_gt_score(score) for score in torch.eye(10).double()]
    expected = torch.nn.functional.cross_entropy(model(x), labels)
    torch.testing.assert_close(model(x, scored, mode="loss")["loss"], expected)


# MESA against its formula; a run with it is in tests/engine/test_recipes.py.


SMALL = dict(depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), img_size=32)


@pytest.mark.parametrize("mode", ["loss", "predict"])
def test_a_segmentor_is_no_classifier(mode):
    model = TimmTrainClassifier("efficientvit_seg_b0_cityscapes").train(mode == "loss")
    samples = [DataSample().set_gt_label(1), DataSample().set_gt_label(0)]
    with pytest.raises(ValueError, match="model_name"):
        model(torch.zeros(2, 3, 32, 64), samples, mode=mode)


def test_loss_is_the_formula():
    model = MesaClassifier(model_name="mlla_tiny", num_classes=10, mesa_ratio=1.5, **SMALL).eval()
    x, labels = torch.randn(3, 3, 32, 32), torch.tensor([1, 9, 4])
    samples = [DataSample().set_gt_label(label) for label in labels]
    plain = model.parse_losses(model.loss(x, samples))[0]
    other = copy.deepcopy(model.model)
    nn.init.normal_(other.head.weight, std=0.5)
    model.average.append(other)
    total, logged = model.parse_losses(model.loss(x, samples))
    term = -(other(x).softmax(1) * model(x).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(total, plain + 1.5 * term)
    total.backward()
    assert all(parameter.grad is None for parameter in other.parameters())
    assert {"loss", "loss_labels", "loss_mesa", "train_acc"} <= logged.keys()
    assert not any("average" in name for name in model.state_dict())


# When features of Performer change, and that all ranks draw alike.


def features(rank: int = 0) -> list[torch.Tensor]:
    """The features that each of five iterations works with, of two attentions that train and a frozen one."""
    torch.manual_seed(0)
    model = nn.ModuleList(PerformerAttention(8, 1, feat_size=(2, 2)) for _ in range(3))
    model[2].eval()
    # MMEngine adds the rank to the seed that all ranks share.
    randomness = {"seed": 7, "diff_rank_seed": True}
    runner = SimpleNamespace(model=model, iter=0, seed=7 + rank, rank=rank, _randomness_cfg=randomness)
    hook = FeatureRedrawHook(2)
    found = []
    for runner.iter in range(5):
        state = torch.get_rng_state()
        hook.before_train_iter(runner, runner.iter)
        assert torch.equal(torch.get_rng_state(), state)
        found.append(torch.stack([attn.projection for attn in model]))
    return found


def test_features_change_each_n_iterations_and_alike_on_all_ranks():
    found = features()
    for attention, stays in enumerate(([True, False, True, False], [True, False, True, False], [True] * 4)):
        assert [torch.equal(a[attention], b[attention]) for a, b in itertools.pairwise(found)] == stays
    assert not torch.equal(*found[-1][:2])
    torch.testing.assert_close(features(rank=1), found, rtol=0, atol=0)


# Timm models by name, from a folder, and mistakes in the name, whoever makes the model of it.


MISTAKES = [
    (partial(create_timm_model, pretrained=True), "resnet_50", "did you mean resnet50"),
    (TimmPredictor, "soft_norm_pico", "soft_norm_pico"),
    (TimmPredictor, "test_vit.no_tag", "no_tag"),
    (CheckpointLoader.load_checkpoint, "timm://local-dir:no/folder", "no/folder"),
]


@pytest.mark.parametrize(("load", "name", "named"), MISTAKES)
def test_mistakes(load, name, named):
    with pytest.raises(ValueError, match=named):
        load(name)


def test_model_in_a_folder(tmp_path):
    model = timm.create_model("test_resnet", num_classes=5)
    save_for_hf(model, str(tmp_path), model_config=dict(num_classes=5))
    loaded = CheckpointLoader.load_checkpoint(f"timm://local-dir:{tmp_path}", map_location="cpu")["state_dict"]
    assert_same(loaded, model.state_dict())


# mmpretrain finds the recorded weights by name.


def test_get_model():
    # Again, after importing the engine did.
    model_index.register_models()
    assert {name for name, entry in RECORDED_WEIGHTS.items() if entry.config} <= set(mmpretrain.list_models())
    found = mmpretrain.get_model("soft_pico.shapes", pretrained=True)
    assert_same(found.model.state_dict(), timm.create_model("soft_pico.shapes", pretrained=True).state_dict())
    assert found._dataset_meta["classes"][0] == "circle"
    assert found._metainfo.results[0].metrics == {"Top 1 Accuracy": 97.3}


def test_inferencers_show_the_model_rgb(tmp_path):
    Image.new("RGB", (64, 64), (255, 128, 0)).save(tmp_path / "orange.png")
    inferencer = mmpretrain.ImageClassificationInferencer(mmpretrain.get_model("soft_tiny.fudan_in1k"))
    (batch,) = inferencer.preprocess([str(tmp_path / "orange.png")])
    assert batch["inputs"][0, :, 9, 9].tolist() == [255, 128, 0]


# What a checkpoint notes of its model and its images, written by a run and read without running any of it.


def test_a_run_notes_its_model_and_its_images(tmp_path):
    options = {"num_classes": 2, "max_bottleneck": (2, 2), "global_pool": "avg"}
    model = {"type": "TimmTrainClassifier", "model_name": "soft_norm_pico", "img_size": 64, "drop_path_rate": 0.1}
    config = {
        "model": {**model, **options},
        "test_dataloader": {"dataset": {"type": "ShapesDataset", "size": 48}},
        "train_cfg": {"max_epochs": 5, "type": "/home/me/loop"},
        "optim_wrapper": {"optimizer": {"type": "AdamW", "lr": 0.001}},
    }
    data = SimpleNamespace(dataset=SimpleNamespace(metainfo={"classes": ["a b", "c"]}))
    pixels = {"mean": [127.5] * 3, "std": [51, 51, 51]}
    classifier = TimmTrainClassifier("soft_norm_pico", img_size=64, **options, data_preprocessor=pixels)
    runner = SimpleNamespace(cfg=Config(config), model=classifier, train_dataloader=data)
    notes = spec_of_run(runner)
    torch.save({"state_dict": {}, "meta": {NOTES_KEY: notes.to_dict()}}, tmp_path / "a.pth")
    read = spec_of(load_checkpoint_file(tmp_path / "a.pth"))
    assert read == notes
    assert read.model == "soft_norm_pico"
    assert read.options == {**options, "img_size": (64, 64), "in_chans": 3}
    view = {"crop_pct": 1.0, "interpolation": "bicubic", "crop_mode": "center", "mean": (0.5,) * 3, "std": (0.2,) * 3}
    assert read.cfg == {**view, "input_size": (3, 64, 64), "label_names": ("a b", "c")}
    assert read.training == {"epochs": "5", "optimizer": "AdamW", "learning rate": "0.001"}


def test_a_checkpoint_without_notes_names_its_classes(tmp_path):
    assert spec_of_run(SimpleNamespace(model=nn.Linear(1, 1))) is None
    torch.save({"state_dict": {}, "meta": {"dataset_meta": {"classes": ("a", "b")}}}, tmp_path / "a.pth")
    content = load_checkpoint_file(tmp_path / "a.pth")
    assert spec_of(content).cfg == {"label_names": ("a", "b")}
    for strange in (3, [1], {"cfg": 3, "dataset_meta": [1]}, {"dataset_meta": {"classes": 3}}):
        assert spec_of({**content, "meta": strange}).cfg == {}
