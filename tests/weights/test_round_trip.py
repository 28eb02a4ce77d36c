"""Every way to save a model and every way to load it give equal outputs, without repeating how it was built.

A way that loads into a model which is built already may refuse instead, with a message that names what to give.
"""

import json
import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from evaluated import by_the_book, write_tree
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform
from torch import nn

from soft_vit.data import CLASSES
from soft_vit.data.demo.trees import make_tree
from soft_vit.dense import SOFT
from soft_vit.dense.features import TimmFeatures
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.engine.run import train
from soft_vit.export import load_export_model
from soft_vit.linearise import Backbone, load_backbone, save_backbone
from soft_vit.weights import RECORDED_WEIGHTS, load_index
from soft_vit.weights.publish import publish
from soft_vit.weights.read import load_weights
from soft_vit.weights.save import LAYOUTS, convert
from soft_vit.weights.spec import ModelSpec, usable

ROOT = Path(__file__).parents[2]
SIZE = (32, 64)
NAMES = ("blue sky", "green", "red")
VIEW = dict(mean=(0.3, 0.4, 0.6), std=(0.2, 0.25, 0.3), crop_pct=0.9, interpolation="bilinear")
NARROW = dict(embed_dims=(4, 8, 12, 16), num_heads=(1, 2, 3, 4), depths=(1, 1, 1, 1))
VIT = dict(embed_dim=24, depth=2, num_heads=3, patch_size=8, reg_tokens=2, init_values=0.5)
PYRAMID = dict(NARROW, stem_width=6, mlp_ratios=2, attention=("soft", "soft_plus", "linear", "gaussian"))
PYRAMID |= dict(class_token=False, global_pool="avg", inverse="cholesky", ridge=0.5, max_bottleneck=(1, 2))
PYRAMID |= dict(local_kernel=3, key_norm="instance", fuse_stages=True)
CARE = dict(depths=(1, 1, 1, 1), embed_dims=(16, 24, 32, 40), ratios=((2, 3), (2, 2), (3, 2), (2, 2)))
SWAPS = [dict(kind="polaformer", blocks=[1], key_norm="instance"), dict(kind="linear", blocks=[0], features="relu")]
# Models with every option off its default; the images of `labels` have several labels.
MODELS = {
    "pyramid": ("soft_pico", PYRAMID),
    "labels": ("soft_pico", PYRAMID),
    "care": ("care_s0", CARE),
    "flatten": ("flatten_swin_tiny", dict(NARROW, linear_blocks=(1, 1, 0, 0), window_size=4)),
    "vit": ("focused_vit_tiny_patch16", dict(VIT, power=2.0, key_norm="instance")),
    "swap": ("swapped_by_soft_vit", dict(VIT, architecture="vit_tiny_patch16_224", attn_layer=SWAPS)),
    # It takes no img_size.
    "conv": ("test_resnet", dict(channels=(8, 12, 16, 24), img_size=None)),
}


def settings(case: SimpleNamespace, **model: Any) -> dict[str, Any]:
    """Options of a run or a test on the images of a case."""
    crop = dict(type="TimmEvalCrop", img_size=SIZE, crop_pct=VIEW["crop_pct"], interpolation=VIEW["interpolation"])
    tree = dict(type="ImageTree", data_root=str(case.root), multi_label=case.several, _delete_=True)
    tree["pipeline"] = [crop, dict(type="PackInputs")]
    sets = {f"{split}_dataloader.dataset": dict(tree, split="val") for split in ("val", "test")}
    scale = {f"data_preprocessor.{name}": [255 * x for x in VIEW[name]] for name in ("mean", "std")}
    model = {f"model.{name}": value for name, value in model.items()}
    return {**sets, "train_dataloader.dataset": dict(tree, split="train"), **scale, "image_size": SIZE, **model}


def train_from(case: SimpleNamespace, start: Path, out: Path, options: dict[str, Any]) -> Path:
    """Train one step; return the checkpoint."""
    how = settings(case, model_name=case.name, num_classes=len(case.names), **options)
    how |= {"num_classes": len(case.names), "train_cfg.max_epochs": 1, "default_hooks.watch": None}
    # A step of Adam hardly depends on how large a gradient is.
    how["optim_wrapper.optimizer"] = dict(type="SGD", lr=10.0, _delete_=True)
    return train(case.config, work_dir=out, options=how | {"load_from": str(start)}, validate=False).checkpoint


def build(key: str, root: Path, out: Path) -> SimpleNamespace:
    """A trained model with its checkpoint."""
    name, options = MODELS[key]
    several = key == "labels"
    case = SimpleNamespace(name=name, options=options, several=several, names=CLASSES if several else NAMES)
    case.config = ROOT / "configs" / "demo" / f"soft_pico_{'labels' if several else 'shapes'}.py"
    case.root = root / "labels" if several else root / "tree"
    torch.manual_seed(0)
    options = {"img_size": SIZE, **options}
    case.model = timm.create_model(name, num_classes=len(case.names), **options).requires_grad_(False)
    for parameter in case.model.parameters():
        parameter.mul_(2).add_(0.1 * torch.randn_like(parameter))
    torch.save(case.model.state_dict(), out / "start.pth")
    case.checkpoint = train_from(case, out / "start.pth", out, case.options)
    case.model.eval().load_state_dict(load_checkpoint_file(case.checkpoint)["state_dict"])
    return case


def save(case: SimpleNamespace, way: str, out: Path) -> Path:
    """Save a model in one of the ways; return the file or the folder."""
    if way == "state":
        torch.save(case.model.state_dict(), out / "state.pth")
    elif way == "bare":
        save_file({key: value.contiguous() for key, value in case.model.state_dict().items()}, out / "bare.safetensors")
    elif way in ("saved", "inside"):
        timm.models.save_for_hf(case.model, out / "folder", safe_serialization=True)
    elif way == "student":
        save_backbone(Backbone(case.model, VIEW["mean"], VIEW["std"]), out / "folder")
    elif way in LAYOUTS:
        convert(case.checkpoint, out / f"{way}.{'safetensors' if way == 'safetensors' else 'pth'}", way)
    elif way in ("published", "hub"):
        publish(case.checkpoint, out, tag="own", licence="mit", hf_dir=out / "folder" if way == "hub" else None)
    else:
        return case.checkpoint
    if way == "inside":
        return out / "folder" / "model.safetensors"
    return next(out.glob("folder" if way in ("saved", "student", "hub") else "*.[ps][ta]*"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Callable[[str, str], tuple[SimpleNamespace, Path]]:
    root, done = tmp_path_factory.mktemp("images"), {}
    write_tree(root / "tree", NAMES, train=1, val=1)
    make_tree(root / "labels", "labels", train=2, val=2, size=SIZE)

    def once(make: Callable[..., Any], *key: Any) -> Any:
        if key not in done:
            done[key] = make(*key)
        return done[key]

    def of(key: str, way: str) -> tuple[SimpleNamespace, Path]:
        case = once(lambda key: build(key, root, tmp_path_factory.mktemp("run")), key)
        return case, once(lambda key, way: save(case, way, tmp_path_factory.mktemp("saved")), key, way)

    return of


def tool(name: str, *arguments: Any) -> None:
    runpy.run_path(str(ROOT / "tools" / f"{name}.py"))["main"]([str(argument) for argument in arguments])


def create(way: str, name: str, path: Path, **options: Any) -> nn.Module:
    """Create a model with the weights of a file or a folder."""
    if way == "checkpoint_path":
        return timm.create_model(name, checkpoint_path=str(path), **options).eval()
    with pytest.MonkeyPatch.context() as patch:
        if way == "overlay":
            options["pretrained_cfg_overlay"] = {"file": str(path)}
        elif way == "recorded":
            tag = next(entry.tag for entry in RECORDED_WEIGHTS.values() if entry.model == name)
            (entry,) = load_index(path / "index.json")
            # timm's configuration of this tag has other numbers.
            options |= {"num_classes": entry.cfg["num_classes"], "img_size": entry.options["img_size"]}
            name = f"{name}.{tag}"
            patch.setenv("SOFT_VIT_CHECKPOINTS", str(path))
            patch.setitem(RECORDED_WEIGHTS, name, replace(entry, tag=tag))
        return timm.create_model(name, pretrained=True, **options).eval()


def load(case: SimpleNamespace, way: str, path: Path, out: Path, options: dict[str, Any]) -> tuple[Any, Any]:
    """Load a file or a folder in one of the ways; return outputs, and those of the model that was saved."""
    x = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(1))
    name = f"local-dir:{path}" if path.is_dir() else case.name
    photos = sorted((case.root / "val").rglob("*.*g"))
    shown = create_transform((3, *SIZE), **VIEW)
    logits = case.model(torch.stack([shown(Image.open(photo).convert("RGB")) for photo in photos]))
    subject = ["--model", name, *([] if path.is_dir() else ["--checkpoint", path])]
    if way == "tools/predict.py":
        with pytest.raises(SystemExit, match=r"^0$"):
            tool("predict", *photos, *subject, "--no-draw", "--topk", 99, "--out", out)
        images = json.loads((out / "predictions.json").read_text())["images"]
        scores = [{entry["class"]: entry["score"] for entry in image["predictions"]} for image in images]
        found = torch.tensor([[one.get(name, torch.nan) for name in case.names] for one in scores])
        return found, logits.sigmoid() if case.several else logits.softmax(1)
    if way.startswith("tools/test.py"):
        given = dict(model_name=case.name, num_classes=len(case.names), **options)
        subject, given = (subject, {}) if way.endswith("--model") else ([path], given)
        changes = [f"{key}={value!r}" for key, value in settings(case, **given).items()]
        tool("test", case.config, *subject, "--out", out / "out.json", "--work-dir", out, "--cfg-options", *changes)
        right = by_the_book(logits, [case.names.index(photo.parent.name) for photo in photos])
        found = json.loads((out / "out.json").read_text())
        return tuple(torch.tensor([values[name] for name in right], dtype=torch.float64) for values in (found, right))
    if way == "load_from":
        runs = [train_from(case, path, out / str(len(given)), given) for given in (options, case.options)]
        return tuple(load_checkpoint_file(run)["state_dict"] for run in runs)
    if way == "teacher":
        return load_backbone(str(path)).eval()(x), case.model.fc_norm(case.model.forward_features(x))
    if way in ("TimmFeatures", "SOFT"):
        start = {"init_cfg": dict(type="Pretrained", checkpoint=str(path))}
        start = start if way == "SOFT" else {"checkpoint_path": str(path)}
        found = (SOFT if way == "SOFT" else TimmFeatures)(name, out_norm=False, **start, **options)
        found.init_weights()
        return found.eval()(x)[-1], case.model.forward_intermediates(x, intermediates_only=True)[-1]
    if way == "export":
        source = load_export_model(name, checkpoint=None if path.is_dir() else path)
        assert source.classes == case.names
        return source.model(x), case.model(x)
    found = create(way, name, path.parent if way == "recorded" else path, **options)
    if way == "folder":
        assert tuple(found.pretrained_cfg["input_size"]) == (3, *SIZE)
    if way == "overlay":
        # What the file notes of classes, task and preprocessing.
        assert usable(load_weights(path).spec.entries({})).items() <= ModelSpec.of(found).cfg.items()
    # A student has no head.
    return tuple(model.forward_features(x) if way == "folder" else model(x) for model in (found, case.model))


# These load into a model with other options than the saved one, apart from those that decide shapes.
BUILT = ("checkpoint_path", "load_from", "tools/test.py")
SHAPES = {*NARROW, *VIT, "stem_width", "mlp_ratios", "attention", "class_token", "global_pool", "local_kernel"}
SHAPES |= {"fuse_stages", "linear_blocks", "channels", "img_size"}
ROWS = """
pyramid  state        overlay, checkpoint_path
pyramid  bare         overlay
pyramid  checkpoint   overlay, tools/predict.py, tools/test.py --model, export
pyramid  checkpoint   checkpoint_path, load_from, tools/test.py, TimmFeatures, SOFT
pyramid  mmengine     overlay, checkpoint_path
pyramid  timm         overlay
pyramid  safetensors  checkpoint_path, tools/predict.py
pyramid  published    overlay, recorded
pyramid  hub          folder, export, tools/test.py --model
pyramid  saved        folder
pyramid  inside       overlay, load_from, SOFT
labels   checkpoint   tools/predict.py
labels   safetensors  tools/predict.py
labels   published    tools/predict.py
labels   hub          tools/predict.py
care     state        overlay
care     published    recorded, tools/predict.py
care     hub          folder
flatten  state        checkpoint_path, TimmFeatures
flatten  bare         checkpoint_path
flatten  checkpoint   overlay, export, tools/test.py, TimmFeatures
flatten  published    recorded
flatten  hub          folder
vit      state        overlay
vit      mmengine     overlay, checkpoint_path, teacher
vit      published    overlay
vit      hub          folder
swap     state        overlay, checkpoint_path
swap     checkpoint   overlay, tools/predict.py, teacher
swap     published    tools/test.py --model
swap     hub          folder, teacher, export
swap     saved        folder
swap     inside       overlay, teacher
swap     student      folder, teacher
conv     checkpoint   tools/predict.py, export
conv     published    tools/predict.py
conv     hub          folder, export
"""
ROWS = [line.split(None, 2) for line in ROWS.strip().splitlines()]


@pytest.mark.parametrize(("key", "way", "how"), [(*row[:2], how) for row in ROWS for how in row[2].split(", ")])
def test_what_is_saved_is_loaded(key, way, how, saved, tmp_path):
    case, path = saved(key, way)
    options = {}
    if way in ("bare", "timm"):
        # They hold weights alone.
        options = dict(case.options, img_size=SIZE, num_classes=len(case.names))
    elif how in BUILT:
        options = {name: value for name, value in case.options.items() if name in SHAPES}
        options |= {"num_classes": len(case.names)} if how == "checkpoint_path" else {}
    elif how == "SOFT":
        # Otherwise it has a default of its own.
        options = {"max_bottleneck": None}
    try:
        found, expected = load(case, how, path, tmp_path, options)
    except (ValueError, SystemExit) as error:
        remedy = "|".join([*case.options, "img_size", "pretrained=True"])
        if (how in BUILT or way == "state") and re.search(rf"\b({remedy})\b", str(error)):
            return
        raise
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


# Files of earlier versions, of models with these options; tests/data/saved/README.md tells how they were written.

SAVED = ROOT / "tests" / "data" / "saved"
SAVED_PYRAMID = dict(NARROW, stem_width=6, mlp_ratios=2, attention=("soft_plus", "soft_norm", "linear", "gaussian"))
SAVED_PYRAMID |= dict(class_token=False, global_pool="avg", inverse="cholesky", ridge=0.01, max_bottleneck=(2, 3))
SAVED_PYRAMID |= dict(local_kernel=3)
SAVED_VIT = dict(embed_dim=24, depth=2, num_heads=3, patch_size=8)
STATES = {
    "flatten": dict(NARROW, name="flatten_swin_tiny", linear_blocks=(1, 1, 0, 0), window_size=4),
    "vit": dict(SAVED_VIT, name="performer_vit_tiny_patch16", num_features=7, qk_norm=True),
}
OWN = dict(num_classes=3, img_size=SIZE)
EARLIER = [(f"{version}/run.pth", "overlay", options) for version in ("0_3", "0_4") for options in ({}, SAVED_PYRAMID)]
EARLIER += [(f"{version}/published", "recorded", {}) for version in ("0_3", "0_4")]
EARLIER += [(f"{version}/published/hub", "folder", {}) for version in ("0_3", "0_4")]
EARLIER += [(f"0_4/{name}", "overlay", {}) for name in ("labels.pth", "converted_mmengine.pth")]
EARLIER += [("0_4/converted_safetensors.safetensors", "overlay", {})]
EARLIER += [("0_4/student", "teacher", {}), ("0_4/swapped", "folder", {})]
# These hold weights alone.
EARLIER += [("0_4/converted_timm.pth", "overlay", dict(SAVED_PYRAMID, **OWN))]
EARLIER += [("0_4/converted_released.pth", "overlay", dict(NARROW, **OWN))]
EARLIER += [(f"0_4/{stem}.pth", "overlay", dict(options, **OWN)) for stem, options in STATES.items()]


@pytest.mark.parametrize(("file", "way", "options"), EARLIER)
def test_files_of_earlier_versions_have_their_outputs(file, way, options):
    path, options = SAVED / file, {"name": "soft_pico", **options}
    expected = torch.from_numpy(np.load(SAVED / file[:3] / "expected.npz")[Path(file.removesuffix("/hub")).stem])
    if way == "folder":
        options["name"] = f"local-dir:{path}"
    found = load_backbone(str(path)).eval() if way == "teacher" else create(way, path=path, **options)
    pixels = np.random.RandomState(0).standard_normal((2, 3, *SIZE)).astype(np.float32)
    # Another machine orders sums in another way: a few roundings of float32 in each of two dozen layers.
    bound = 100 * torch.finfo(torch.float32).eps * expected.abs().max().item()
    torch.testing.assert_close(found(torch.from_numpy(pixels)).detach(), expected, rtol=0, atol=bound)
