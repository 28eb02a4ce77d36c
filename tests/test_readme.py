"""What README.md says can be done: every command and snippet runs, and every path that it names is there.

Commands of this machine run with options that make them small; those of several processes are read by their tool, with
their very options, and their config is loaded. Both run in full with `pytest -m slow tests/test_readme.py`, the latter
on two processes and small data.
"""

import importlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from unittest.mock import create_autospec

import matplotlib
import pytest
import timm
import torch
from documents import ROOT, blocks, commands, extras_of, inline_code, named_paths, run_tool
from PIL import Image
from released import released_state_dict

from soft_vit.analysis.lengths import Curve
from soft_vit.data import draw_shape
from soft_vit.data.shape_trees import make_tree

TEXT = (ROOT / "README.md").read_text()
COMMANDS = commands(TEXT)


class Local(NamedTuple):
    """A command of this machine: options that make it small, and the commands that go before it.

    replaced: a long function, with tests of its own, in whose place `returns` is returned; its arguments are checked.
    """

    extra: str = ""
    needs: tuple[str, ...] = ()
    replaced: str = ""
    returns: object = None


DEMO = "python tools/train.py configs/demo/soft_pico_shapes.py"
COCO_TREE, ADE_TREE = (f"python tools/make_shapes.py data/shapes_{task} --task {task}" for task in ("coco", "ade"))
MASK_RCNN = "python tools/train.py configs/detection/mask_rcnn_soft_pico_shapes.py"
PUBLISH = "python tools/publish_checkpoint.py"
FEW_SHAPES = "train_dataloader.dataset.length=64 val_dataloader.dataset.length=20 test_dataloader.dataset.length=20"
ONE_EPOCH = "param_scheduler=[] train_dataloader.batch_size=2"
DETECTION = f"--cfg-options train_cfg.max_epochs=1 train_cfg.val_interval=1 {ONE_EPOCH} model.min_size=64"
# By how the command begins; the longest beginning counts.
LOCAL = {
    "python tools/predict.py shape.png": Local(),
    DEMO: Local(f"--cfg-options {FEW_SHAPES}"),
    "python tools/test.py configs/demo/soft_pico_shapes.py": Local(f"--cfg-options {FEW_SHAPES}", (DEMO,)),
    # tests/tools/test_tutorial.py runs it whole, and reads what it prints.
    "python tools/tutorial.py": Local("--help"),
    "python tools/check_checkpoint.py": Local(),
    "python tools/plot_logs.py": Local("", (DEMO,)),
    COCO_TREE: Local("--train 2 --val 1 --size 64"),
    ADE_TREE: Local("--train 6 --val 1 --size 96"),
    "python tools/train.py configs/detection/retinanet_soft_pico_shapes.py": Local(DETECTION, (COCO_TREE, DEMO)),
    MASK_RCNN: Local(DETECTION, (COCO_TREE, DEMO)),
    "python tools/train.py configs/segmentation/upernet_soft_pico_shapes.py": Local(
        "--cfg-options train_cfg.max_iters=1 train_cfg.val_interval=1 default_hooks.checkpoint.interval=1 "
        "param_scheduler=[] data_preprocessor.windows.per_image=1 model.test_cfg.stride=64",
        (ADE_TREE,),
    ),
    "python tools/predict.py data/shapes_coco/val2017": Local(
        "--checkpoint work_dirs/mask_rcnn_soft_pico_shapes/epoch_1.pth", (COCO_TREE, MASK_RCNN)
    ),
    # tests/export writes and runs such files.
    "python tools/export.py": Local("", (), "soft_vit.export.export"),
    "python tools/convert_checkpoint.py": Local("", (DEMO,)),
    PUBLISH: Local("", (DEMO,)),
    "python tools/compare_attention.py soft": Local("", (), "soft_vit.analysis.compare.compare_attentions", []),
    # tests/analysis/test_lengths.py measures.
    "python tools/compare_attention.py --lengths": Local(
        "", (), "soft_vit.analysis.lengths.measure_all", ([Curve("soft", [784, 1568], [1, 2], [])], {})
    ),
    "python tools/get_flops.py": Local(),
    "python tools/get_memory.py": Local("", (), "soft_vit.analysis.memory.training_memory_by_saving", {"plain": 1}),
    "python tools/attention_spectrum.py": Local("--img-size 64 --images 1"),
    "python tools/visualize_attention.py": Local("--img-size 64"),
    "python tools/train_attentions.py": Local("", (), "soft_vit.engine.accuracy.compare_accuracy", []),
    "python tools/benchmark.py pvt_v2_b1": Local("--batch-size 1 --img-size 32 --rounds 3 --modes inference"),
    "python tools/benchmark.py --op naive": Local("--batch-size 1 --tokens 64 --rounds 3"),
    "python tools/benchmark_resolution.py": Local("", (), "soft_vit.analysis.resolution.measure_resolutions", []),
}
# Commands that start processes on many devices, and the function of soft_vit.engine that they end in.
DISTRIBUTED = {"tools/dist_train.sh": "train", "tools/slurm_train.sh": "train", "tools/dist_test.sh": "evaluate"}
# What is added to commands in full that take an hour and more.
IN_FULL = {"python tools/train_attentions.py": "soft softmax"}


def key_of(command: str) -> str | None:
    return max((key for key in LOCAL if command.startswith(key)), key=len, default=None)


LOCAL_COMMANDS = [command for command in COMMANDS if key_of(command)]
DISTRIBUTED_COMMANDS = [command for command in COMMANDS if command.split()[0] in DISTRIBUTED]
INSTALLATIONS = [command for command in COMMANDS if command.startswith("pip ")]


class Desk:
    """A folder in which the commands of the page are given, each at most once."""

    def __init__(self, folder: Path, small: bool) -> None:
        self.folder, self.small, self.done = folder, small, set()
        for name in ("configs", "tools", "checkpoints"):
            (folder / name).symlink_to(ROOT / name)
        Image.fromarray(draw_shape(seed=1, index=5).image).save(folder / "shape.png")
        torch.save(released_state_dict(), folder / "SOFT_Tiny.pth")

    def run(self, command: str) -> None:
        key = key_of(command)
        if command in self.done:
            return
        case = LOCAL[key]
        for other in case.needs:
            self.run(next(given for given in COMMANDS if key_of(given) == other))
        if not self.small:
            run_tool(command, shlex.split(IN_FULL.get(key, "")))
        elif case.replaced:
            with pytest.MonkeyPatch.context() as patch:
                module, name = case.replaced.rsplit(".", 1)
                original = getattr(importlib.import_module(module), name)
                fake = create_autospec(original, return_value=case.returns)
                patch.setattr(case.replaced, fake)
                run_tool(command, shlex.split(case.extra))
                assert fake.called
        else:
            run_tool(command, shlex.split(case.extra))
        self.done.add(command)


@pytest.fixture(scope="module")
def small_desk(tmp_path_factory) -> Desk:
    return Desk(tmp_path_factory.mktemp("small"), small=True)


@pytest.fixture(scope="module")
def full_desk(tmp_path_factory) -> Desk:
    return Desk(tmp_path_factory.mktemp("full"), small=False)


@pytest.fixture
def desk(request, monkeypatch) -> Desk:
    """The full desk for slow tests, else the small one; as working folder, without a display."""
    found = request.getfixturevalue("full_desk" if request.node.get_closest_marker("slow") else "small_desk")
    monkeypatch.chdir(found.folder)
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", str(found.folder))
    matplotlib.use("Agg")
    return found


def test_every_command_is_in_a_table():
    assert sorted(COMMANDS) == sorted([*LOCAL_COMMANDS, *DISTRIBUTED_COMMANDS, *INSTALLATIONS, "pytest"])
    unused = LOCAL.keys() - {key_of(command) for command in COMMANDS}
    assert not unused, "take out what the page does not show"


@pytest.mark.parametrize("command", LOCAL_COMMANDS)
def test_command(desk, command):
    desk.run(command)


@pytest.mark.slow
@pytest.mark.parametrize("command", LOCAL_COMMANDS)
def test_command_in_full(desk, command):
    desk.run(command)


@pytest.mark.slow
def test_accuracy_that_the_page_states(desk, capsys):
    desk.run(DEMO)
    # Training, if no other test has asked for it before, says the accuracy after each epoch.
    capsys.readouterr()
    test = next(command for command in COMMANDS if command.startswith("python tools/test.py configs/demo"))
    run_tool(test)
    top1 = float(capsys.readouterr().out.split("accuracy/top1: ")[1].split()[0])
    # The last digit depends on the machine's products of matrices.
    assert top1 == pytest.approx(97.7, abs=1)


@pytest.mark.parametrize("command", INSTALLATIONS)
def test_extras_exist(command):
    for extra in extras_of(command):
        assert (ROOT / "requirements" / f"{extra}.txt").is_file()


def recorder(folder: Path, name: str) -> Path:
    """A program that writes its arguments, one a line, to folder/recorded."""
    program = folder / name
    program.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" >"{folder}/recorded"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("command", DISTRIBUTED_COMMANDS)
def test_command_of_several_processes_reaches_the_run(tmp_path, monkeypatch, command):
    from soft_vit.engine.config import load_config

    recorder(tmp_path, "srun")
    environment = {
        **os.environ,
        "PYTHON": str(recorder(tmp_path, "python")),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    subprocess.run(["bash", *shlex.split(command)], cwd=ROOT, env=environment, check=True)
    given = (tmp_path / "recorded").read_text().splitlines()
    place = next(index for index, word in enumerate(given) if word.endswith(("tools/train.py", "tools/test.py")))
    kind, calls = DISTRIBUTED[command.split()[0]], []

    def stand_in(config, *positional, **options):
        target = {} if kind == "train" else {"config": config.config, "options": config.options}
        calls.append({"config": config, **options, **target})
        return {} if kind == "evaluate" else "ended"

    monkeypatch.setattr(f"soft_vit.engine.{'evaluate' if kind == 'evaluate' else 'run'}.{kind}", stand_in)
    monkeypatch.chdir(ROOT)
    run_tool(shlex.join(["python", *given[place:]]))
    (given,) = calls
    assert given["launcher"] == ("slurm" if "slurm" in command else "pytorch")
    assert load_config(given["config"], given["options"]).data_root.startswith("/path/to/")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes on gloo need a machine without a GPU")
def test_imagenet_commands_on_two_processes(desk):
    make_tree(desk.folder / "images", "imagefolder", train=40, val=20, size=64)
    options = (
        "data_root=images num_classes=10 model.num_classes=10 data_preprocessor.num_classes=10 train_cfg.max_epochs=1 "
        "train_dataloader.batch_size=4 train_dataloader.num_workers=0 train_dataloader.persistent_workers=False "
        "val_dataloader.num_workers=0 val_dataloader.persistent_workers=False test_dataloader.num_workers=0 "
        "test_dataloader.persistent_workers=False"
    )
    for command in [command for command in DISTRIBUTED_COMMANDS if "imagenet" in command and "slurm" not in command]:
        command = command.replace(" 8 ", " 2 ").replace("epoch_300", "epoch_1")
        words = shlex.split(command.replace("data_root=/path/to/imagenet", options))
        ended = subprocess.run(
            ["bash", *words],
            env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize("snippet", blocks(TEXT, "python"))
def test_snippet(desk, snippet):
    exec(snippet, {})


CALLS = list(dict.fromkeys(code for code in inline_code(TEXT) if code.startswith("timm.create_model(")))


@pytest.mark.parametrize("call", CALLS)
def test_call(desk, call):
    if "published/" in call:
        desk.run(next(command for command in COMMANDS if command.startswith(PUBLISH)))
    assert isinstance(eval(call, {"timm": timm}), torch.nn.Module)


def test_paths_exist():
    missing = [path for path in named_paths(TEXT) if not any(ROOT.glob(path.rstrip("/")))]
    assert not missing


def test_options_of_the_models_exist():
    """The names in the first column of the table of options."""
    from inspect import signature

    from soft_vit.layers import ATTENTIONS, attention_options
    from soft_vit.models import PyramidViT

    table = TEXT.split("| option | values |\n|---|---|\n")[1].split("\n\n")[0]
    named = {code for row in table.splitlines() for code in inline_code(row.split("|")[1])}
    known = {*signature(PyramidViT.__init__).parameters, *attention_options(ATTENTIONS["soft"])}
    assert named <= known
