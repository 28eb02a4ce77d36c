"""What each phase changes, the loss against its formula, and runs that stop and go on."""

import itertools

import pytest
import timm
import torch
from engine.runs import CONFIGS, assert_same, assert_same_state, scalars, tiny, weights
from mmengine.logging import MessageHub
from mmengine.optim import OptimWrapper
from mmpretrain.structures import DataSample
from timm.layers import Attention as TimmAttention

from soft_vit.engine import LineariseClassifier, train
from soft_vit.engine.models.linearise import TeacherAgreement, attention_loss
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.predict.predictors import load_predictor

CONFIG = CONFIGS / "linearise" / "linear_pico_shapes.py"
SMALL = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
GAP = dict(class_token=False, global_pool="avg")
PIXELS = dict(mean=[127.5] * 3, std=[64.0] * 3)
NAME = "vit_tiny_patch16_224"
RUNS = itertools.count()


@pytest.fixture(scope="module")
def teacher_file(tmp_path_factory):
    """A random ViT of 10 classes, with the notes of a training on images that are normalised like PIXELS."""
    torch.manual_seed(5)
    model = timm.create_model(NAME, num_classes=10, weight_init="jax", **SMALL, **GAP)
    torch.nn.init.normal_(model.head.weight, std=0.5)
    for block in model.blocks:
        # Attention far from uniform, which other kinds do not give at once.
        torch.nn.init.normal_(block.attn.qkv.weight, std=0.5)
    path = tmp_path_factory.mktemp("teacher") / "teacher.pth"
    cfg = {name: [value / 255 for value in PIXELS[name]] for name in PIXELS}
    torch.save({"state_dict": model.state_dict(), "meta": {"timm_model": {"model": NAME, "cfg": cfg}}}, path)
    return path


def student(teacher_file, model_name="linear_vit_tiny_patch16", **options) -> LineariseClassifier:
    teacher = dict(model_name=NAME, checkpoint=str(teacher_file), **SMALL, **GAP)
    options = dict(data_preprocessor=PIXELS, num_classes=10, phase1_epochs=1, **SMALL) | GAP | options
    model = LineariseClassifier(model_name=model_name, teacher=teacher, **options)
    model.init_weights()
    model.phase1_iters = 1
    return model


def at_iteration(number: int) -> None:
    # The hub of the run that began last is the current one.
    MessageHub.get_instance(f"linearise_{next(RUNS)}").update_info("iter", number)


def steps(model: LineariseClassifier, count: int) -> list[float]:
    torch.manual_seed(0)
    wrapper = OptimWrapper(torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1))
    images = list(torch.rand(8, 3, 32, 32) * 255)
    samples = [DataSample().set_gt_label(i) for i in range(8)]
    model.train()
    batch = {"inputs": images, "data_samples": samples}
    return [float(model.train_step(batch, wrapper)["loss"].detach()) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "options", "blocks"),
    [("linear_vit_tiny_patch16", {}, {0, 1}), (NAME, dict(swap=dict(kind="linear", blocks=[-1])), {1})],
)
def test_each_phase_trains_its_part(teacher_file, name, options, blocks):
    model = student(teacher_file, name, **options)
    kept = {block for block in range(2) if isinstance(model.model.blocks[block].attn, TimmAttention)}
    assert kept == {0, 1} - blocks
    # Linear attention has queries, keys and values of its own, and takes all of them over.
    teacher, own = model.teacher.model.state_dict(), model.model.state_dict()
    assert_same({key: own[key] for key in teacher}, teacher)
    names = {key for key, _ in model.model.named_parameters()}
    attentions = tuple(f"blocks.{block}.attn." for block in blocks)
    for iteration, trained in ((0, {key for key in names if key.startswith(attentions)}), (1, names)):
        before = {key: value.clone() for key, value in model.model.state_dict().items()}
        at_iteration(iteration)
        losses = steps(model, 16)
        assert losses[-1] < 0.9 * losses[0]
        assert {key for key, value in model.model.state_dict().items() if not value.equal(before[key])} == trained


def test_loss_is_the_error_by_the_variance(teacher_file):
    model = student(teacher_file).double()
    model.teacher.double()
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    tokens = model.teacher.model._pos_embed(model.teacher.model.patch_embed(model.teacher.view(x)))
    expected = []
    for new, old in zip(model.model.blocks, model.teacher.model.blocks, strict=True):
        seen = old.norm1(tokens)
        result, ours = old.attn(seen), new.attn(seen)
        expected.append((ours - result).square().mean() / result.flatten(0, 1).var(dim=0, correction=0).mean())
        tokens = old(tokens)
    # The loss is in float32, from results of order one.
    torch.testing.assert_close(
        attention_loss(model.model, model.teacher, x).double(), torch.stack(expected), rtol=1e-5, atol=0
    )


def test_agreement_of_decisions_and_probabilities():
    student = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])
    teacher = torch.tensor([[0.25, 0.75, 0.0], [0.1, 0.2, 0.7]])
    metric = TeacherAgreement()
    metric.process({}, [dict(pred_score=s, teacher_score=t) for s, t in zip(student, teacher, strict=True)])
    found = metric.evaluate(2)
    assert found["teacher/agreement"] == 50
    expected = (0.25 * torch.tensor(0.5).log() + 0.75 * torch.tensor(1.5).log()) / 2
    assert found["teacher/kl"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        (NAME, {}, "swap"),
        (NAME, dict(swap=dict(kind="lineal")), "lineal"),
        ("linear_vit_tiny_patch16", dict(depth=3), "size"),
        ("linear_vit_tiny_patch16", dict(data_preprocessor=dict(mean=[0.0] * 3, std=[255.0] * 3)), "mean"),
    ],
)
def test_what_does_not_fit(teacher_file, name, options, named):
    with pytest.raises(ValueError, match=named):
        student(teacher_file, name, **options)


@pytest.mark.parametrize(("loop", "step"), [({"max_epochs": 2}, 2), ({"by_epoch": False, "max_iters": 6}, 5)])
def test_run_that_stops_in_either_phase_resumes_exactly(teacher_file, tmp_path, loop, step):
    """Three steps of each phase, whether the run counts epochs or iterations; the log keeps them apart."""
    options = tiny(images=12, batch=4, epochs=2) | {
        **{f"model.{key}": value for key, value in (SMALL | GAP).items() if key != "img_size"},
        "model.model_name": "performer_vit_tiny_patch16",
        "model.teacher": dict(model_name=NAME, checkpoint=str(teacher_file), **SMALL, **GAP),
        "default_hooks.checkpoint.by_epoch": False,
        "custom_hooks": [
            {"type": "LineariseHook"},
            {"type": "FeatureRedrawHook", "feature_redraw_interval": 4},
            {"type": "EMAEvalHook", "momentum": 0.1},
        ],
    }
    del options["model.depths"], options["train_cfg.max_epochs"]
    options["train_cfg"] = loop
    whole = train(CONFIG, work_dir=tmp_path / "whole", options=options)
    assert {"accuracy/top1", "teacher/agreement", "teacher/kl", "cpu_minutes"} <= whole.metrics.keys()
    expected = weights(whole.checkpoint)
    steps = [entry for entry in scalars(tmp_path / "whole") if "loss" in entry]
    assert ["loss_attention" in entry for entry in steps] == [True] * 3 + [False] * 3
    assert steps[3]["loss"] == pytest.approx(steps[3]["loss_labels"] + steps[3]["loss_teacher"], rel=1e-4)
    averaged = load_checkpoint_file(whole.checkpoint)["ema_state_dict"]
    assert {name.removeprefix("module.") for name in averaged} - {"steps"} == expected.keys()
    start = tmp_path / "whole" / f"iter_{step}.pth"
    again = train(CONFIG, work_dir=tmp_path / "again", options=options, resume=str(start))
    assert_same_state(whole.checkpoint, again.checkpoint, "state_dict", "ema_state_dict")
    drawn = [weights(tmp_path / "whole" / f"iter_{step}.pth")["blocks.0.attn.projection"] for step in (4, 5)]
    assert not torch.equal(*drawn)
    # The name and the notes in the file rebuild it, without the config and the teacher.
    predictor = load_predictor("performer_vit_tiny_patch16", checkpoint=whole.checkpoint)
    assert_same({name: predictor.model.state_dict()[name] for name in expected}, expected)
