"""Write files of weights as a user of this version does.

`PYTHONPATH=. python tests/data/saved/make.py NEW_FOLDER`

`0_3` is of the release 0.3.0, `0_4` of the last commit before 0.4. `expected.npz` holds the logits of `pixels` for each
file, or the tokens of a backbone. Every later version must load the files, so they are never written again.
"""

import sys
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import soft_vit
from soft_vit.data.demo.trees import make_tree
from soft_vit.engine.run import train
from soft_vit.linearise.backbone import load_backbone, make_student, save_backbone
from soft_vit.weights.publish import publish
from soft_vit.weights.save import convert

CONFIGS = Path(__file__).parents[3] / "configs" / "demo"
SIZE = (32, 64)
NARROW = dict(embed_dims=(4, 8, 12, 16), num_heads=(1, 2, 3, 4), depths=(1, 1, 1, 1))
PYRAMID = dict(
    NARROW, stem_width=6, mlp_ratios=2, inverse="cholesky", ridge=0.01, max_bottleneck=(2, 3), local_kernel=3
)
PYRAMID |= dict(attention=("soft_plus", "soft_norm", "linear", "gaussian"), class_token=False, global_pool="avg")
VIT = dict(embed_dim=24, depth=2, num_heads=3, patch_size=8)
TEACHER = dict(VIT, reg_tokens=2, init_values=0.5)
STATES = {
    "flatten": ("flatten_swin_tiny", dict(NARROW, linear_blocks=(1, 1, 0, 0), window_size=4)),
    "vit": ("performer_vit_tiny_patch16", dict(VIT, num_features=7, qk_norm=True)),
}


def pixels() -> Tensor:
    """Return images `[2, 3, 32, 64]`."""
    return torch.from_numpy(np.random.RandomState(0).standard_normal((2, 3, *SIZE)).astype(np.float32))


def drawn(name: str, **options) -> nn.Module:
    """Return a model whose weights are far from those that it begins with."""
    torch.manual_seed(0)
    model = timm.create_model(name, **{"img_size": SIZE, "num_classes": 3, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2).add_(0.1 * torch.randn_like(parameter))
    return model


def trained(config: str, folder: Path, file: Path, expected: dict[str, Tensor], **options) -> None:
    """Train for two steps, and keep weights and notes of the checkpoint."""
    torch.save(drawn("soft_pico", **PYRAMID).state_dict(), folder / "start.pth")
    own = {f"model.{name}": value for name, value in PYRAMID.items()}
    common = {"model.model_name": "soft_pico", "image_size": SIZE, "train_cfg.max_epochs": 1, **own}
    common |= {"load_from": str(folder / "start.pth"), "train_dataloader.batch_size": 2, "default_hooks.watch": None}
    train(CONFIGS / f"{config}.py", work_dir=folder / config, options=common | options, validate=False)
    content = torch.load(folder / config / "epoch_1.pth", weights_only=False)
    meta = {name: value for name, value in content["meta"].items() if name not in ("cfg", "config", "hostname")}
    weights = {name: value for name, value in content.items() if name in ("state_dict", "ema_state_dict")}
    torch.save({"meta": meta, **weights}, file)
    model = drawn("soft_pico", **PYRAMID, num_classes=len(content["state_dict"]["head.bias"]))
    model.load_state_dict(content["state_dict"])
    expected[file.stem] = model(pixels())


def main(out: Path, scratch: Path) -> None:
    out.mkdir(parents=True)
    expected: dict[str, Tensor] = {}

    for split in ("train", "val"):
        for i, name in enumerate(("blue sky", "green", "red")):
            for j in range(2 if i else 1):
                path = scratch / "tree" / split / name / f"{j}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (64, 40), (40 * i, 90 * j, 7)).save(path)
    make_tree(scratch / "labels", "labels", train=4, val=1, size=64)
    pipeline = [dict(type="TimmEvalCrop", img_size=SIZE, crop_pct=1.0), dict(type="PackInputs")]
    tree = dict(_delete_=True, type="ImageTree", data_root=str(scratch / "tree"), split="train", pipeline=pipeline)
    run = {"train_dataloader.dataset": tree, "val_dataloader.dataset": tree, "num_classes": 3}
    run |= {"test_dataloader.dataset": tree, "custom_hooks": [dict(type="EMAEvalHook", momentum=0.3)]}
    trained("soft_pico_shapes", scratch, out / "run.pth", expected, **run)
    trained("soft_pico_labels", scratch, out / "labels.pth", expected, data_root=str(scratch / "labels"))

    publish(out / "run.pth", out / "published", tag="own", licence="mit", hf_dir=out / "published" / "hub")
    expected["published"] = expected["run"]
    # The released layout has names for the released network alone.
    model = drawn("soft_pico", **NARROW)
    meta = {"timm_model": {"model": "soft_pico", "options": NARROW}}
    torch.save({"meta": meta, "state_dict": model.state_dict()}, scratch / "released.pth")
    for layout, suffix in dict(released="pth", mmengine="pth", timm="pth", safetensors="safetensors").items():
        source = scratch / "released.pth" if layout == "released" else out / "run.pth"
        convert(source, out / f"converted_{layout}.{suffix}", layout)
        expected[f"converted_{layout}"] = model(pixels()) if layout == "released" else expected["run"]

    for stem, (name, options) in STATES.items():
        model = drawn(name, **options)
        torch.save(model.state_dict(), out / f"{stem}.pth")
        expected[stem] = model(pixels())

    teacher = drawn("vit_tiny_patch16_224", **TEACHER)
    timm.models.save_for_hf(teacher, scratch / "teacher", model_config={"pretrained_cfg": {"mean": (0.4, 0.5, 0.6)}})
    student = make_student(load_backbone(str(scratch / "teacher")), "polaformer", [1])
    save_backbone(student, out / "student")
    expected["student"] = student.eval()(pixels())
    swapped = drawn("vit_tiny_patch16_224", **TEACHER)
    soft_vit.swap_attention(swapped, "polaformer", [1])
    timm.models.save_for_hf(swapped, out / "swapped", safe_serialization=True)
    expected["swapped"] = swapped.eval()(pixels())
    np.savez(out / "expected.npz", **{name: value.detach().numpy() for name, value in expected.items()})


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        main(Path(sys.argv[1]), Path(scratch))
