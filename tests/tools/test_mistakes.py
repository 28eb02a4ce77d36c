"""A mistake ends each tool in one line that names it, before anything is written."""

import pytest

EXPORT = ("--model", "soft_pico", "--no-pretrained", "--format", "torch_export", "--out", "model.pt2")
PUBLISH = ("out", "--tag", "mine", "--licence", "mit")

CASES = {
    "app": [
        (("--model", "soft_tiny"), "--checkpoint together"),
        (("--model", "soft_tini", "--checkpoint", "file"), "did you mean"),
        (("--model", "soft_tiny", "--checkpoint", "missing.pth"), "missing.pth"),
        (("--port", "many"), "--port"),
    ],
    "attention_health": [
        (("--model", "soft_picc"), "did you mean soft_pico"),
        (("--model", "soft_pico", "--num-matrices", 0), "got 0"),
        (("--model", "soft_pico", "--data", "missing"), "no folder missing"),
        (("--model", "soft_pico", "--out", "file/table.md"), "table.md cannot be written"),
    ],
    "attention_spectrum": [
        (("--model", "no_such_model"), "got no_such_model"),
        (("--model", "soft_pico", "--img-size", 20), "20 x 20"),
        (("--model", "soft_norm_pico"), "No pretrained weights exist"),
        (("--model", "soft_pico", "--checkpoint", "missing.pth"), "missing.pth"),
        (("--model", "soft_pico", "missing.png"), "missing.png"),
        (("--model", "soft_pico", "file"), "file cannot be read"),
        (("--model", "soft_pico", "--out", "file/out"), "out.png cannot be written"),
    ],
    "convert_checkpoint": [
        (("none.pth", "b.pth", "--to", "timm"), "none.pth"),
        (("file", "file", "--to", "timm"), "file"),
    ],
    "export": [
        (EXPORT[3:], "--config and --checkpoint"),
        ((*EXPORT, "--model", "soft_picco"), "did you mean soft_pico"),
        ((*EXPORT, "--format", "onnx"), ".onnx"),
        ((*EXPORT, "--features", 4), "from 0 to 3"),
        ((*EXPORT[:2], *EXPORT[3:], "--checkpoint", "none.pth"), "none.pth"),
    ],
    "get_flops": [
        ((), "required"),
        (("soft_pica",), "did you mean soft_pico"),
        (("xyzzy_1",), "timm has no model 'xyzzy_1'"),
        (("xcit_nano_12_p16_224", "--img-size", 20), "20 x 20"),
        (("--config", "nowhere.py"), "nowhere.py"),
    ],
    "studies gym": [
        (("--tasks", "recal"), "invalid choice: 'recal'"),
        (("--kinds", "soft:nothing=1"), "got 'nothing'"),
        (("--seeds", 0), "seeds"),
        (("--steps", 2), "steps"),
        (("--jobs", 0), "jobs"),
        (("--tasks", "mirror", "recall", "--difficulty", 4, 2.5), "got 2.5"),
        (("--tasks", "listops", "--model", "pyramid"), "listops is a sequence"),
        (("--no-train", "--out", "file/gym"), "file/gym cannot be used"),
    ],
    "studies linearise": [
        (("{demo}", "sofd", "--work-dir", "."), "'sofd'"),
        (("nowhere.py", "soft", "--work-dir", "."), "nowhere.py"),
        (("{demo}", "soft", "--work-dir", "."), "configs/linearise"),
    ],
    "make_shapes": [((".", "--task", "ade"), "empty folder")],
    "plot_logs": [
        (("nowhere",), "got nowhere"),
        (("file",), "empty"),
        (("file", "--out", "."), "is a folder"),
    ],
    "publish_checkpoint": [
        (("none.pth", *PUBLISH), "none.pth"),
        (("file", *PUBLISH, "--metric", "x"), "NAME=VALUE"),
    ],
    "studies softmax": [
        (("soft_pic",), "did you mean"),
        (("soft_pico", "--out", "file/softmax.md"), "softmax.md cannot be written"),
    ],
    "studies attentions": [
        (("{demo}", "sofd", "--work-dir", "."), "'sofd'"),
        (("{demo}", "soft", "--work-dir", ".", "--jobs", 0), "jobs"),
        (("{demo}", "soft", "--out", "file/accuracy"), "accuracy.md cannot be written"),
    ],
    "tutorial": [(("--steps", 0), "--steps is 0")],
    "visualize_attention": [
        (("missing.png", "--model", "soft_pico"), "missing.png"),
        (("file", "--model", "soft_pico"), "file cannot be read"),
        (("photo.png", "--model", "soft_pico", "--stage", 5), "got 5"),
        (("photo.png", "--model", "soft_norm_pico"), "soft_norm_pico"),
        (("photo.png", "--model", "soft_pico", "--device", "gpu"), "'gpu'"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_ends_in_one_line(name, mistake, demo, photo, tmp_path):
    (tmp_path / "file").write_text("")
    before = {path.name for path in tmp_path.iterdir()}
    for arguments, message in CASES[name]:
        given = [demo if argument == "{demo}" else argument for argument in arguments]
        assert message in mistake(name, *given), given
    assert {path.name for path in tmp_path.iterdir()} == before
