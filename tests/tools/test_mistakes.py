"""A mistake ends each tool in one line that names it, before anything is written."""

import shlex

import pytest

EXPORT = "--model soft_pico --no-pretrained --format torch_export --out model.pt2"
PUBLISH = "out --tag mine --licence mit"
SHAPES, TINY = "{configs}/demo/soft_pico_shapes.py", "{configs}/soft_tiny.py"

CASES = {
    "app": [("--checkpoint missing.pth", "--model"), ("--model soft_tiny --checkpoint missing.pth", "missing.pth")],
    "attention_health": [
        ("--model soft_pico --data missing", "missing"),
        ("--model soft_pico --out file/table.md", "table.md"),
    ],
    "attention_spectrum": [
        ("--model soft_norm_pico", "soft_norm_pico"),
        ("--model soft_pico --out file/out", "out.png"),
    ],
    "convert_checkpoint": [("none.pth b.pth --to timm", "none.pth"), ("file file --to timm", "file")],
    "export": [("--format torch_export --out model.pt2", "--checkpoint"), (f"{EXPORT} --features 4", "from 0 to 3")],
    "get_flops": [("", "required"), ("xcit_nano_12_p16_224 --img-size 20", "20 x 20"), ("soft_pica", "soft_pico")],
    "linearise": [
        ("--teacher resnet18 --kind linear --images . --out file/a", "file"),
        ("--teacher nowhere --kind linear --images . --out .", "nowhere"),
        ("--teacher file --kind linear --images . --out .", "file"),
        ("--teacher test_vit --kind linear --images . --out . --steps 1 2", "[1, 2]"),
    ],
    "make_shapes": [(". --task ade", "empty folder")],
    "plot_logs": [("nowhere", "nowhere"), ("file --out .", "folder")],
    "predict": [("*.gif --model test_vit", "*.gif"), ("photo.png --model test_vit --out photo.png", "photo.png")],
    "publish_checkpoint": [(f"none.pth {PUBLISH}", "none.pth"), (f"file {PUBLISH} --metric x", "NAME=VALUE")],
    "studies gym": [("--tasks mirror recall --num-tokens 16 25", "got 25"), ("--no-train --out file/gym", "file/gym")],
    "studies linearise": [("--kinds sofd", "sofd"), ("--no-train --out file/study", "file cannot be used")],
    "studies softmax": [("soft_pico --out file/softmax.md", "softmax.md")],
    "test": [("none.pth", "none.pth"), ("", "CHECKPOINT and --model NAME"), (TINY, "the config")],
    "train": [
        ("none.py", "none.py"),
        (TINY, "data_root"),
        ("{configs}/detection/retinanet_soft_pico_shapes.py --cfg-options data_root=nowhere", "nowhere"),
        (f"{SHAPES} --stop-signals SIGKILL", "SIGKILL"),
        (f"{SHAPES} --resume none.pth", "none.pth"),
        (f"{SHAPES} --cfg-options train_cfgs.max_epochs=3", "train_cfgs.max_epochs"),
    ],
    "visualize_attention": [
        ("file --model soft_pico", "file cannot be read"),
        ("photo.png --model soft_pico --stage 5", "got 5"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_ends_in_one_line(name, mistake, demo, photo, tmp_path):
    (tmp_path / "file").write_text("")
    before = set(tmp_path.rglob("*"))
    for arguments, message in CASES[name]:
        given = shlex.split(arguments.format(configs=demo.removesuffix("/demo/soft_pico_shapes.py")))
        assert message in mistake(name, *given), given
    assert set(tmp_path.rglob("*")) == before
