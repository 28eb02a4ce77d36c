"""Students that take over a teacher's features, and the command with its report."""

import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import tarfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call, patch

import numpy as np
import pytest
import timm
import torch
from distributed.processes import call_in_ranks
from documents import ROOT, run_tool
from PIL import Image
from torch import Tensor, nn

from soft_vit.layers import Attention
from soft_vit.layers.token_grid import TokenGrid
from soft_vit.linearise import Backbone, Linearisation, Plan, linearise, load_backbone, make_student, save_backbone
from soft_vit.linearise.errors import attention_errors, neighbour_agreement, token_errors, transfer_errors
from soft_vit.linearise.images import UnlabelledImages, vary_colours
from soft_vit.linearise.plan import Trainable, split_steps
from soft_vit.probe.matrix import watch_attention
from soft_vit.resume.stop import RunStopped
from soft_vit.weights.read import read_checkpoint_file

# Each phase on small ViTs of every kind that is supported, runs that stop, two processes, and mistakes.


# With layers as strong as after training.
TIMM = {
    "DINOv2 of timm": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "init_values": 1.0}),
    "DINOv3 of timm": ("vit_small_patch16_dinov3", {"img_size": 64, "init_values": 1.0}),
    "SigLIP of timm": ("vit_base_patch16_siglip_224", {"img_size": 64}),
    "CLIP of timm": ("vit_base_patch16_clip_224", {"img_size": 64}),
}
WIDTH = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
VISION = dict(WIDTH, image_size=16, patch_size=4)
TEXT = dict(WIDTH, vocab_size=50)
# Of transformers: its class, and the arguments of its config.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Dinov2WithRegisters": ("Model", {k: v for k, v in VISION.items() if k != "intermediate_size"}),
    "DINOv3ViT": ("Model", VISION),
    "Siglip": ("Model", {"vision_config": VISION, "text_config": TEXT}),
    "CLIP": ("Model", {"vision_config": VISION, "text_config": TEXT, "projection_dim": 8}),
}


def small_vit(**options: Any) -> Any:
    torch.manual_seed(0)
    options = {"depth": 2, "embed_dim": 24, "num_heads": 2, "num_classes": 0, "dynamic_img_size": True, **options}
    model = timm.create_model("vit_tiny_patch16_224", **{"img_size": 32, "patch_size": 8, **options}).eval()
    for block in model.blocks:
        # Attention far from uniform.
        nn.init.normal_(block.attn.qkv.weight, std=0.5)
    return model


def teacher(**options: Any) -> Backbone:
    return Backbone(small_vit(**options), (0.5,) * 3, (0.5,) * 3)


def saved_teacher(name: str, folder: Path) -> Path:
    """A random teacher in a folder, as timm or transformers saves it."""
    torch.manual_seed(0)
    if name in TIMM:
        model_name, options = TIMM[name]
        model = timm.create_model(model_name, depth=2, embed_dim=24, num_heads=2, num_classes=0, **options)
        timm.models.save_for_hf(model, folder, safe_serialization=True)
    else:
        transformers = pytest.importorskip("transformers")
        kind, options = TRANSFORMERS[name]
        model = getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(**options))
        model.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    return folder


def batches(plan: Plan, seed: int = 0) -> Any:
    """The batches of random images of a plan, from a step on."""

    def start(step: int) -> Iterator[Tensor]:
        for i in itertools.count(step):
            size, count = plan.images(i)
            yield torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(100 * seed + i))

    return start


# The other models have the same blocks, with other names or positions; tests of swaps have them all.
QUICK = ("DINOv2 of timm", "Dinov2WithRegisters")


NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in (*TIMM, *TRANSFORMERS)]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_each_phase(name: str, tmp_path: Path) -> None:
    """What was trained is saved, and is as loaded, at any size; blocks that keep softmax have the teacher's weights."""
    of_folder = load_backbone(str(saved_teacher(name, tmp_path)))
    side = of_folder.patch_size[0]
    plan = Plan(steps=(1, 1, 1), sizes=(2 * side, 4 * side), batch_size=4)
    run = Linearisation(of_folder, "linear", plan, options={"qk_conv": True}, keep_softmax=1)
    before = {key: value.clone() for key, value in run.teacher.state_dict().items()}
    run.fit(batches(plan), torch.randn(2, 3, 2 * side, 2 * side))
    assert all(torch.equal(value, before[key]) for key, value in run.teacher.state_dict().items())
    assert [len(run.history[key]["blocks"]) for key in ("swap", "phase 1", "phase 2", "phase 3")] == [2, 2, 1, 1]
    (swapped,) = run.blocks
    assert (run.history["softmax"]["kept"], run.student.training) == ([1 - swapped], False)
    save_backbone(run.student, tmp_path / "out")
    again = load_backbone(str(tmp_path / "out"))
    own = [block for block in (0, 1) if any(isinstance(m, Attention) for m in again.attention(block).modules())]
    assert own == [swapped]
    x = torch.randn(1, 3, 3 * side, 5 * side)
    expected = run.student(x)
    torch.testing.assert_close(again(x), expected)
    assert not torch.allclose(again(x), run.teacher(x))
    if name in TIMM:
        how = dict(pretrained=True, features_only=True, out_indices=[0, 1])
        features = timm.create_model(f"local-dir:{tmp_path / 'out'}", **how)
        assert [f.shape[-2:] for f in features(x)] == [(3, 5)] * 2


@pytest.mark.parametrize(("trainable", "changed"), [("attention", ".1.attn."), ("all", "")])
def test_each_phase_trains_its_part_and_lowers_its_error(trainable: Trainable, changed: str) -> None:
    plan, x = Plan((15, 15, 0), (32,), lr=(3e-3, 3e-3), trainable=trainable), torch.randn(8, 3, 32, 32)
    run, states = Linearisation(teacher(), "linear", plan, blocks=[-1]), []

    def watched(start: int) -> Iterator[Tensor]:
        for step in range(30):
            if step in (0, plan.ends[0]):
                states.append({key: value.clone() for key, value in run.student.state_dict().items()})
            yield x

    run.fit(watched, x)
    own, first = states
    assert {key for key in own if not torch.equal(first[key], own[key])} == {key for key in own if ".1.attn." in key}
    last = run.student.state_dict()
    assert {key for key in own if not torch.equal(last[key], first[key])} == {key for key in own if changed in key}
    before, between, after = (run.history[phase] for phase in ("swap", "phase 1", "phase 2"))
    assert between["blocks"]["1"] < 0.9 * before["blocks"]["1"]
    assert after["error"] < 0.8 * between["error"] < before["error"]


@pytest.mark.parametrize(("kind", "match"), [("hedgehog", "weights"), ("hedgehog", "both"), ("gaussian", "weights")])
def test_weights_of_attentions_are_learned(kind: str, match: str) -> None:
    """The divergence is that of rows of dense matrices, of any sums; steps by weights alone change what makes them."""
    of, x = teacher(), torch.randn(4, 3, 32, 40)
    plan = Plan(steps=(20, 0, 0), sizes=(32,), lr=(1e-2, 3e-3), match=match)
    run, twin = Linearisation(of, kind, plan), make_student(of, "softmax")
    before = {key: value.clone() for key, value in run.student.state_dict().items()}
    errors, found = transfer_errors(run.student, twin, x, [0, 1], weights=True).detach()
    matrices: list[Tensor] = []
    tokens = of.model.norm_pre(of.model._pos_embed(of.model.patch_embed(x)))
    for backbone in (twin, run.student):
        attn = next(part for part in backbone.attention(0).modules() if isinstance(part, Attention))
        with watch_attention(attn, matrices.append):
            backbone.attention(0)(of.model.blocks[0].norm1(tokens), attn_mask=TokenGrid((4, 5), 1, None))
    p, q = (matrix.clamp(min=1e-9) for matrix in matrices)
    assert float(found[0]) == pytest.approx(float((p * (p / q).log() - p + q).sum(-1).mean()), rel=1e-4)
    torch.testing.assert_close(errors, attention_errors(run.student, of, x, [0, 1]).detach(), rtol=1e-4, atol=1e-6)
    run.fit(lambda start: itertools.repeat(x), x)
    assert (transfer_errors(run.student, twin, x, [0, 1], weights=True).detach()[1] < 0.9 * found).all()
    changed = {key for key, value in run.student.state_dict().items() if not torch.equal(value, before[key])}
    assert any(".q" in key for key in changed)
    assert any("proj" in key for key in changed) == (match == "both")


@pytest.mark.parametrize(("lr", "stopped"), [(1.0, True), (1e-3, False)])
def test_a_phase_that_makes_errors_worse_is_stopped_and_leaves_nothing(lr: float, stopped: bool) -> None:
    plan, x = Plan(steps=(4, 16, 0), sizes=(32,), lr=(1e-3, lr)), torch.randn(8, 3, 32, 32)
    run, seen, states = Linearisation(teacher(), "linear", plan), [], []

    def watched(start: int) -> Iterator[Tensor]:
        for step in range(start, 20):
            seen.append(step)
            if step == 4:
                states.append({key: value.clone() for key, value in run.student.state_dict().items()})
            yield x

    with pytest.warns(UserWarning, match="Phase 2") if stopped else nullcontext():
        run.fit(watched, x)
    first, second = run.history["phase 1"], run.history["phase 2"]
    same = [torch.equal(value, states[0][key]) for key, value in run.student.state_dict().items()]
    # Stopped by the check after half of its steps.
    assert seen == list(range(12 if stopped else 20))
    assert all(same) == stopped
    assert (second["error"] < first["error"], second["step"] == 4) == (not stopped, stopped)
    assert [step for step, _ in second["checks"]] == list(range(4, 13 if stopped else 21, 2))
    assert run.step == 20


@pytest.mark.parametrize("best", ["weights", "average"])
def test_a_phase_ends_with_the_best_of_weights_and_averages(best: str, monkeypatch) -> None:
    """After four of 16 steps, with a check after every second one."""
    errors = iter([1.0, 0.9, 0.8, *((0.5, 0.6) if best == "weights" else (0.6, 0.5)), *(0.7,) * 12])
    monkeypatch.setattr(Linearisation, "_held_out_error", lambda *_: next(errors))
    plan, x = Plan(steps=(16, 0, 0), sizes=(32,)), torch.randn(2, 3, 32, 32)
    run, weights = Linearisation(teacher(), "linear", plan), []
    read = lambda: run.student.attention(0).qkv.weight.detach().clone()  # noqa: E731  short

    def watched(start: int) -> Iterator[Tensor]:
        for _ in range(start, 16):
            weights.append(read())
            yield x

    run.fit(watched, x)
    assert run.history["phase 1"]["step"] == 4
    assert [error for _, error in run.history["phase 1"]["checks"]] == [1.0, 0.8, 0.5, *(0.7,) * 6]
    average = weights[0]
    for step, weight in enumerate(weights[1:5], 1):
        average = average.lerp(weight, 9 / (10 + step))
    torch.testing.assert_close(read(), weights[4] if best == "weights" else average)


def test_attention_errors_are_by_the_variance_of_the_teachers() -> None:
    of = teacher().double()
    student = Linearisation(of, "linear").student.double()
    x = torch.randn(3, 3, 32, 40, dtype=torch.float64)
    tokens, expected = of.model._pos_embed(of.model.patch_embed(x)), []
    for new, old in zip(student.model.blocks, of.model.blocks, strict=True):
        given = old.norm1(tokens)
        y, result = new.attn(given), old.attn(given)
        expected.append((y - result).square().mean() / result.flatten(0, 1).var(dim=0, correction=0).mean())
        tokens = old(tokens)
    found = attention_errors(student, of, x, [0, 1]).double()
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=0)


def test_errors_of_tokens_and_neighbours() -> None:
    y = torch.randn(4, 7, 6)
    assert float(token_errors(y, y, 2)) == pytest.approx(0, abs=1e-6)
    # Half of the error is of the prefix token, whatever their number.
    x = torch.cat([-y[:, :1], y[:, 1:]], dim=1)
    scale = (y - y.mean((0, 1))).square().mean()
    assert float(token_errors(x, y, 1)) == pytest.approx(float((4 * y[:, 0].square().mean() / scale + 2) / 2), rel=1e-5)
    features = torch.randn(6, 5)
    assert neighbour_agreement(features, 3 * features, k=2) == 1
    # The other four are all the neighbours that there are.
    assert neighbour_agreement(features[:5], torch.randn(5, 5), k=4) == 1


def stopped_run(checkpoint: Path | None = None, stop: int | None = None) -> Linearisation:
    plan = Plan(steps=(2, 1, 1), sizes=(16, 32), batch_size=2)
    # Its bottleneck tokens are drawn in each step.
    run = Linearisation(teacher(), "soft", plan, keep_softmax=1, options={"sampling": "random"})

    def stopping(start: int) -> Iterator[Tensor]:
        for step, x in enumerate(batches(plan)(start), start):
            if step == stop:
                raise KeyboardInterrupt
            yield x

    with patch("soft_vit.linearise.train.SAVE_EVERY", 1):
        run.fit(stopping, torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(9)), checkpoint)
    return run


@pytest.mark.parametrize("kind", ["linear", "none"])
def test_without_a_first_phase_blocks_keep_softmax_too(kind: str) -> None:
    plan = Plan(steps=(0, 1, 0), sizes=(16,), batch_size=2)
    run = Linearisation(teacher(), kind, plan, keep_softmax=1)
    run.fit(batches(plan), torch.randn(2, 3, 16, 16))
    (kept,) = run.history["softmax"]["kept"]
    assert type(run.student.attention(kept)) is not type(run.student.attention(1 - kept))


def test_a_run_that_stops_continues_exactly(tmp_path: Path) -> None:
    whole = stopped_run()
    for stop in (1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            stopped_run(tmp_path / "run.pth", stop)
    again = stopped_run(tmp_path / "run.pth")
    assert again.history == whole.history
    torch.testing.assert_close(again.student.state_dict(), whole.student.state_dict(), rtol=0, atol=0)
    torch.save({"state_dict": {}}, tmp_path / "another.pth")
    for file, key, value in (("run", "kind", "soft"), ("run", "images", "these"), ("another", "step", "state_dict")):
        other = Linearisation(teacher(), "linear", whole.plan, keep_softmax=1)
        other.settings |= {} if key == "kind" else {"kind": "soft", "options": whole.options, "images": "those"}
        if key == "images":
            state = torch.load(tmp_path / "run.pth")
            torch.save({**state, "settings": {**state["settings"], "images": value}}, tmp_path / "run.pth")
        with pytest.raises(ValueError, match=f"{key}.* got .*{value}"):
            other.fit(batches(whole.plan), torch.randn(2, 3, 16, 16), tmp_path / f"{file}.pth")


@pytest.mark.parametrize("global_pool", ["token", "avg"])
def test_final_tokens_are_normalised_where_timm_normalises_their_mean(global_pool: str) -> None:
    tokens = teacher(global_pool=global_pool)(torch.randn(2, 3, 32, 32))
    torch.testing.assert_close(tokens.var(-1, correction=0), torch.ones(2, 17), rtol=0, atol=1e-3)


def test_errors_are_means_over_images():
    plans, x = [Plan(steps=(1, 0, 0), sizes=(16,), batch_size=n) for n in (3, 4)], torch.randn(4, 3, 16, 16)
    three, four = (Linearisation(teacher(), "linear", plan).measure(x)["cosine"] for plan in plans)
    assert three == pytest.approx(four)


def _send_in_step(run: Linearisation, number: int) -> None:
    """Send a signal to this process in the second step; 0 sends none."""
    block = run.teacher.model.blocks[0]
    # Not while errors are measured before it.
    in_step = lambda: run.step == 1 and run.student.training  # noqa: E731  short
    block.register_forward_pre_hook(lambda *_: (in_step() and os.kill(os.getpid(), number)) or None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_step_ends_the_run_after_it(tmp_path: Path, number: int) -> None:
    plan, x = Plan(steps=(3, 0, 0), sizes=(16,), batch_size=2), torch.randn(2, 3, 16, 16)
    run, path = Linearisation(teacher(), "linear", plan), tmp_path / "run.pth"
    _send_in_step(run, number)
    with pytest.raises(RunStopped):
        run.fit(batches(plan), x, path)
    assert torch.load(path)["step"] == 2


def _process(rank: int, folder: Path) -> dict[str, Tensor]:
    plan = Plan(steps=(1, 1, 0), sizes=(16,), batch_size=2)
    run = Linearisation(teacher(), "linear", plan)
    run.fit(batches(plan, seed=rank), next(batches(plan)(0)), folder / "run.pth")
    state = run.student.state_dict()
    # A signal to one of them stops both.
    run = Linearisation(teacher(), "linear", Plan(steps=(3, 0, 0), sizes=(16,), batch_size=2))
    _send_in_step(run, signal.SIGTERM if rank else 0)
    with pytest.raises(RunStopped):
        run.fit(batches(run.plan, seed=rank), torch.zeros(2, 3, 16, 16), folder / "stopped.pth")
    return state


def test_two_processes_have_the_same_student(tmp_path: Path) -> None:
    """The first step is by the mean of both gradients: AdamW's is the sign of it."""
    found = call_in_ranks(2, tmp_path, _process, tmp_path)
    alone = Linearisation(teacher(), "linear", Plan(steps=(1, 1, 0), sizes=(16,), batch_size=2))
    alone.fit(batches(alone.plan), next(batches(alone.plan)(0)))
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())
    assert torch.load(tmp_path / "stopped.pth")["step"] == 2
    assert any(not torch.equal(value, found[0][key]) for key, value in alone.student.state_dict().items())


def folder_of_images(folder: Path) -> Path:
    folder.mkdir()
    for i, size in enumerate([(40, 30), (25, 50), (64, 64)]):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def test_images_follow_from_the_step(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images")
    images = UnlabelledImages(folder, (0.5,) * 3, (0.25,) * 3, seed=1)
    plan = Plan(steps=(1, 2, 2), sizes=(16, 32), batch_size=4)
    whole = list(images.batches(plan.images, range(5)))
    assert [x.shape for x in whole] == [(4, 3, 16, 16)] * 3 + [(1, 3, 32, 32)] * 2
    loading = images.batches(plan.images, range(2, 5), num_workers=1)
    later = [next(loading)]
    # A cluster that stops a run signals its workers, too, and the run ends its step with their images.
    os.system(f"kill {multiprocessing.active_children()[0].pid}; sleep 0.2")
    later += loading
    assert all(torch.equal(a, b) for a, b in zip(whole[2:], later, strict=True))
    # Two processes share the images of a step.
    halves = [next(images.batches(lambda step: (16, 2), range(1), rank, 2)) for rank in (0, 1)]
    assert torch.equal(torch.cat(halves), whole[0])
    # No two steps share a crop, also where later images are smaller.
    plan = Plan(steps=(1, 1, 2), sizes=(32, 16), batch_size=2)
    crops = torch.cat([x.mean((1, 2, 3)) for x in images.batches(plan.images, range(4))])
    assert len(crops) == 2 + 2 + 8 + 8 == len(set(crops.tolist()))
    # Most crops have other colours, or are blended. Grey stays grey, and pixels that are equally bright stay so.
    plain = UnlabelledImages(folder, (0.5,) * 3, (0.25,) * 3, seed=1, vary=False)
    assert {torch.equal(plain[i, 16], images[i, 16]) for i in range(30)} == {False, True}
    x = np.full((2, 5, 3), 0.5) + np.array([0.02, -0.01, -0.01]) * np.arange(5)[:, None]
    for seed in range(5):
        found = vary_colours(x, np.random.default_rng(seed))
        np.testing.assert_allclose(found[:, 0], found[:, 0].mean(), atol=1e-12)
        np.testing.assert_allclose(found.mean(2), found[0, 0, 0], atol=1e-12)
    # Each pass has all images once.
    firsts = [images._load(images.entries, int(i)).size for i in np.random.default_rng((1, 0, 3)).permutation(3)]
    assert sorted(firsts) == sorted([(30, 40), (50, 25), (64, 64)])
    assert images.samples(8, 16).shape == (3, 3, 16, 16)
    # Three are too few to hold one out; of thirty, three are taken out.
    images.hold_out(1)
    assert not images.held_out
    many = UnlabelledImages(folder, (0.5,) * 3, (0.25,) * 3)
    many.entries *= 10
    many.hold_out(3)
    assert [len(many), *(entry.name[-5:] for entry in many.held_out)] == [27, "0.png", "2.png", "2.png"]
    assert torch.equal(many.samples(8, 16), images.samples(3, 16)[[0, 2, 2]])
    # An archive by its name or without its suffix, and the same images elsewhere.
    with tarfile.open(tmp_path / "packed.tar", "w") as archive:
        archive.add(folder, ".")
    for name in ("packed.tar", "packed"):
        packed = UnlabelledImages(tmp_path / name, (0.5,) * 3, (0.25,) * 3, seed=1)
        assert torch.equal(packed[0, 16], images[0, 16])
        assert packed.fingerprint() == images.fingerprint()
    shutil.copy(folder / "0.png", folder / "1.png")
    assert images.fingerprint() != packed.fingerprint()
    (folder / "1.png").unlink()
    (folder / "1.png").symlink_to("nowhere.png")
    assert images.fingerprint() != packed.fingerprint()
    with pytest.warns(UserWarning, match=r"1\.png"):
        assert images._load(images.entries, 1).size == (64, 64)


def test_mistakes(tmp_path: Path) -> None:
    """Each is one sentence."""
    (tmp_path / "empty").mkdir()
    (broken := tmp_path / "broken").mkdir()
    (broken / "1.png").write_text("no image")
    twin, x = make_student(of := teacher(), "softmax"), torch.zeros(1, 3, 16, 16)
    mistakes: list[tuple[Any, str]] = [
        (lambda: load_backbone("resnet18", pretrained=False), "resnet18"),
        (lambda: load_backbone("no_such_vit"), "no_such_vit"),
        (lambda: load_backbone(str(tmp_path / "empty")), "empty"),
        (lambda: Linearisation(teacher(), "linear", Plan(sizes=(30,))), "patch size 8"),
        (lambda: Linearisation(teacher(), "lineal"), "linear"),
        (lambda: Linearisation(teacher(), "linear", keep_softmax=2), "keep_softmax"),
        (lambda: Linearisation(teacher(), "linear", Plan(intermediates=(2,))), "intermediates"),
        (lambda: Linearisation(teacher(), "linear", Plan(match="maps")), "match"),  # type: ignore[arg-type]
        (lambda: transfer_errors(make_student(of, "polaformer"), twin, x, [0], weights=True), "match"),
        (lambda: transfer_errors(make_student(of, "spatial_reduction"), twin, x, [0], weights=True), "match"),
        (lambda: Linearisation(load_backbone(TIMM["DINOv3 of timm"][0], pretrained=False, depth=1), "hydra"), "hydra"),
        (lambda: UnlabelledImages(tmp_path / "empty", (0,) * 3, (1,) * 3), "empty"),
        (lambda: UnlabelledImages(tmp_path / "none", (0,) * 3, (1,) * 3), "none"),
        (lambda: UnlabelledImages(broken, (0,) * 3, (1,) * 3)[0, 8], "1.png"),
    ]
    for mistake, words in mistakes:
        with pytest.raises(ValueError, match=words) as caught:
            mistake()
        assert "\n" not in str(caught.value)


def test_each_process_takes_its_own_gpu(tmp_path: Path) -> None:
    """Before the first collective, as the objects of those lie on the current one."""
    calls, environment = Mock(), patch.dict(os.environ, RANK="1", LOCAL_RANK="1")
    replaced = patch("torch.cuda.set_device", calls.set_device), patch("soft_vit.linearise.run.distributed", calls)
    with replaced[0], replaced[1], environment, pytest.raises(ValueError, match="no_such_vit"):
        linearise("no_such_vit", "linear", tmp_path, tmp_path / "out", device="cuda")
    assert calls.mock_calls[:2] == [call.set_device("cuda:1"), call.init_process_group("nccl")]


def test_gradients_that_are_not_finite_end_the_run() -> None:
    run, images = Linearisation(teacher(), "linear", Plan((1, 0, 0), (16,))), torch.zeros(2, 3, 16, 16)
    with pytest.raises(ValueError, match="step 0"):
        run.fit(lambda start: iter([images / 0]), images)
    assert all(p.isfinite().all() for p in run.student.parameters())


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch) -> None:
    save_backbone(student := teacher(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("timm.models._hub.save_config_for_hf", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ValueError, match="No space left"):
        save_backbone(student, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# The command on a small teacher: weights, report and pictures, and a second call that has nothing left to do.


def test_command_writes_weights_and_a_report(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tools").symlink_to(ROOT / "tools")
    # Of 16 and 24 pixels; a GPU has no memory for more.
    peaks = Mock(side_effect=itertools.cycle([0] * 4 + [torch.OutOfMemoryError()]))
    monkeypatch.setattr("soft_vit.linearise.report.peak_memory", peaks)
    monkeypatch.setattr("soft_vit.linearise.report.SHOWN", 1)
    timm.models.save_for_hf(small_vit(patch_size=4, img_size=16), tmp_path / "teacher", safe_serialization=True)
    folder_of_images(tmp_path / "images")
    command = "python tools/linearise.py --teacher teacher --kind linear --images images --out out --size 16 32 "
    command += "--steps 8 --batch-size 2 --keep-softmax 1 --kind-options key_norm=instance --workers 0 --bf16"
    run_tool(command)
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    assert command in text
    assert "key_norm=instance in 1 of 2 blocks, from 3 images" in text
    assert re.findall(r"^\| (swap|phase \d) \|", text, re.MULTILINE) == ["swap", "phase 1", "phase 2", "phase 3"]
    choices = re.findall(r"^\| (\w+) \| [\d, ]* \| [\d.]+ \|$", text, re.MULTILINE)
    assert choices[:4] == ["greedy", "first", "last", "random"]
    assert [int(row) for row in re.findall(r"^\| (\d+) \| \d+ \| \d\.\d+ \|", text, re.MULTILINE)] == [16, 32, 64]
    for name in re.findall(r"\((\w+\.png)\)", text):
        with Image.open(tmp_path / "out" / name) as image:
            assert image.width > 300
    student, original = load_backbone(str(tmp_path / "out")), load_backbone(str(tmp_path / "teacher"))
    # The last phase is checked on images of its own size.
    samples = UnlabelledImages(tmp_path / "images", original.mean, original.std).samples(32, 32)
    checks = read_checkpoint_file(tmp_path / "out" / "run" / "checkpoint.pth")["history"]["phase 3"]["checks"]
    error = sum(float(token_errors(student(x), original(x), prefix=1)) for x in samples.split(2)) / 2
    assert error == pytest.approx(min(found for _, found in checks), rel=1e-4)
    expected = student(x := torch.randn(1, 3, 32, 48))
    # It ends at once, and writes the same weights. Drawings take most of the time.
    for draw in ("_draw_features", "_draw_curves"):
        monkeypatch.setattr(f"soft_vit.linearise.report.{draw}", lambda *_: None)
    run_tool(command)
    assert torch.equal(load_backbone(str(tmp_path / "out"))(x), expected)
    # An option without a value is not one that is off.
    with pytest.raises(AssertionError, match=r"key_norm .*: 2"):
        run_tool(command.replace("=instance", ""))


def test_steps_of_the_phases() -> None:
    assert [split_steps([12], sizes) for sizes in (1, 2)] == [(4, 8, 0), (4, 5, 3)]
    assert split_steps([1, 2, 3], 2) == (1, 2, 3)
    for steps, sizes in (([1, 2], 1), ([1, 2, 3], 1), ([1, 2, 0], 2), ([0], 1), ([-1, 2, 0], 1)):
        with pytest.raises(ValueError, match="steps"):
            split_steps(steps, sizes)
