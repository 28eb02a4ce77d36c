"""What README.md, CONTRIBUTING.md and docs/ show is true: commands and snippets run, figures and paths are there.

A command of one process runs with options that make it small, after the commands that it needs. One that a test of its
own tool runs, and every command of several processes, is read by its tool with its very options, up to the call of the
package. `pytest -m slow tests/test_pages.py` runs the commands in full, those of several processes on two.
"""

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import create_autospec

import matplotlib
import pytest
import timm
import torch
from documents import ROOT, blocks, commands, inline_code, missing_paths, run_tool
from PIL import Image
from released import released_state_dict

from soft_vit.data import draw_shape
from soft_vit.data.shape_trees import make_tree
from soft_vit.engine.config import load_config
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.models import PyramidViT
from soft_vit.models.names import SIZES
from soft_vit.weights import load_index

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("checkpoints", "configs", "configs/baselines", "configs/linearise", "tools")
READ_ONLY = [ROOT / folder / "README.md" for folder in FOLDERS]
TEXT = "\n".join(page.read_text() for page in PAGES)
COMMANDS = commands(TEXT)


class Case(NamedTuple):
    """How a command runs: options that make it small, the commands that go before it, and a function left out.

    replaced: a function that takes long, in whose place `returns` is returned; its arguments are checked.
    """

    extra: str = ""
    needs: tuple[str, ...] = ()
    replaced: str = ""
    returns: object = None


def training(*needs: str) -> Case:
    """A training that tests/engine or tests/dense run: here it ends where the run would start."""
    return Case("", needs, "soft_vit.engine.run.train", "ended")


DEMO = "python tools/train.py configs/demo/soft_pico_shapes.py"
COCO, ADE = (f"python tools/data/make_shapes.py data/shapes_{task} --task {task}" for task in ("coco", "ade"))
PUBLISH = "python tools/weights/publish_checkpoint.py work_dirs"
FEW_SHAPES = "--cfg-options val_dataloader.dataset.length=20 test_dataloader.dataset.length=20"
# By how the command begins; the longest beginning counts.
CASES = {
    "python tools/predict.py shape.png": Case(),
    # tests/tools/test_app_browser.py drives the page.
    "python tools/app.py": Case("--help"),
    DEMO: Case(f"{FEW_SHAPES} train_dataloader.dataset.length=64 train_cfg.val_interval=5"),
    "python tools/train.py configs/demo/soft_plus_pico_tiles.py": Case(
        f"{FEW_SHAPES} train_dataloader.dataset.length=64 train_cfg.max_epochs=1"
    ),
    "python tools/train.py configs/demo/zoo/mlla.py": training(),
    "python tools/train.py configs/finetune": training(),
    "python tools/train.py configs/linearise": training(),
    # tests/studies/test_linearise.py runs it on few images.
    "python -m studies linearise": Case("", (), "studies.linearise.compare_linearised", []),
    # tests/engine/models/test_feature_redraw.py trains so.
    f"{DEMO} --cfg-options": training(),
    "python tools/test.py configs/demo/soft_pico_shapes.py": Case(FEW_SHAPES, (DEMO,)),
    # tests/tools/test_tutorial.py runs it whole, and reads what it prints.
    "python tools/tutorial.py": Case("--help"),
    "python tools/weights/check_checkpoint.py": Case(),
    "python tools/analysis/plot_logs.py": Case(),
    COCO: Case("--train 2 --val 1 --img-size 64"),
    ADE: Case("--train 2 --val 1 --img-size 64"),
    "python tools/train.py configs/detection/retinanet_soft_pico_shapes.py": training(COCO),
    "python tools/train.py configs/detection/mask_rcnn_soft_pico_shapes.py": training(COCO),
    "python tools/train.py configs/segmentation/upernet_soft_pico_shapes.py": training(ADE),
    # tests/predict predicts with a detector.
    "python tools/predict.py data/shapes_coco/val2017": Case(
        "", (COCO,), "soft_vit.predict.predict_files", SimpleNamespace(exit_code=0)
    ),
    # tests/export writes and runs such files.
    "python tools/export.py": Case("", (), "soft_vit.export.export"),
    "python tools/weights/convert_checkpoint.py": Case("", (DEMO,)),
    PUBLISH: Case("", (DEMO,)),
    "python tools/weights/publish_checkpoint.py FILE": Case(
        "--model soft_pico --mean 0.5 0.5 0.5 --std 0.25 0.25 0.25"
    ),
    "python tools/compare_attention.py soft": Case("", (), "benchmarks.attentions.compare_attentions", []),
    "python tools/compare_attention.py --vit": Case("", (), "benchmarks.attentions.compare_attentions", []),
    # tests/analysis measures.
    "python tools/atlas.py --out": Case("", (), "benchmarks.atlas.measure.measure", [[]]),
    "python tools/atlas.py --out atlas --models": Case("", (), "benchmarks.atlas.models.measure_models", [([], [])]),
    "python tools/atlas.py --check": Case("", (), "benchmarks.atlas.table.mistakes_in", []),
    "python tools/analysis/get_flops.py": Case(),
    # tests/studies/test_softmax.py measures.
    "python -m studies softmax": Case("--out ledger.md", (), "studies.softmax.ledgers", ([], {})),
    "python tools/get_memory.py": Case("", (), "benchmarks.memory.training_memory_by_saving", {"plain": 1}),
    "python tools/analysis/attention_spectrum.py": Case("--img-size 64 --shapes 1"),
    "python tools/analysis/visualize_attention.py": Case("--img-size 64"),
    "python -m studies attentions": Case("", (), "studies.attentions.compare_accuracy", []),
    "python tools/benchmark.py pvt_v2_b1": Case("", (), "benchmarks.models.measure_throughput", []),
    "python tools/benchmark.py --op naive": Case("", (), "benchmarks.operator.measure_operator", []),
    "python tools/benchmark_zoo.py": Case("", (), "benchmarks.models.measure_throughput", []),
    "python tools/benchmark_resolution.py": Case("", (), "benchmarks.resolution.measure_resolutions", []),
    # tests/studies/test_claims.py checks most.
    "python -m studies claims": Case("--only 17"),
    "python -m studies claims --only 8 24": Case(),
    "python -m studies claims --table": Case(),
    "python tools/analysis/attention_health.py": Case("--num-images 10 --num-matrices 1"),
    # tests/studies/gym trains and draws.
    "python -m studies gym": Case("--no-train"),
    "python -m studies gym-tasks": Case("", (), "studies.gym.command.draw_tasks"),
    # tests/docs/test_generated.py writes them.
    "python -m docs.generate": Case("--out .", (), "docs.generate.__main__.generated", ""),
    "python -m docs.generate.linearised": Case("--help"),
    # tests/distributed/test_resume.py runs it in full, among the slow tests.
    "python tests/distributed/kill_trials.py": Case("--help"),
}
# Commands that start processes on many devices, and the function that they end in.
DISTRIBUTED = {f"tools/{name}_train.sh": "soft_vit.engine.run.train" for name in ("dist", "slurm")}
DISTRIBUTED |= {"tools/dist_test.sh": "soft_vit.engine.evaluate.evaluate"}
# What CI itself runs.
BY_CI = {"pytest", "pytest -m slow", "ruff check .", "ruff format --check ."}
BY_CI |= {"mypy soft_vit/ops soft_vit/layers soft_vit/models soft_vit/weights"}
# CI builds the site, strictly; tests/docs opens it.
BY_CI |= {"mkdocs serve"}
BY_CI |= {"python -m venv .venv", "source .venv/bin/activate"}
# tests/tools/test_gpu_report.py runs the dry one, among the slow tests; the others need a GPU.
ON_A_GPU = {"benchmarks/gpu_report.sh work_dirs/gpu", "benchmarks/gpu_report.sh work_dirs/gpu_dry --dry"}
# What is added to commands in full that take an hour and more.
IN_FULL = {"python -m studies attentions": "soft softmax", "python tests/distributed/kill_trials.py": "--trials 1"}
IN_FULL |= {"python tools/atlas.py --out atlas --models": "soft_pico --sizes 64 --forms eager"}
IN_FULL |= {"python tools/atlas.py --out atlas": "--kinds soft --tokens 196 --seconds 1"}
# A page serves until it is stopped.
IN_FULL |= {"python tools/app.py": "--help"}


def key_of(command: str) -> str | None:
    return max((key for key in CASES if command.startswith(key)), key=len, default=None)


LOCAL = [command for command in COMMANDS if key_of(command)]
OF_SEVERAL = [command for command in COMMANDS if command.split()[0] in DISTRIBUTED]
INSTALLATIONS = [command for command in COMMANDS if command.startswith("pip ")]


def call_of(command: str, function: str, returns: object, extra: Sequence[str] = ()):
    """The call of a function, by its dotted name, that a tool ends in; its arguments fit the function."""
    # Imported by its path: soft_vit.engine has a function of its module's name.
    path, name = function.rsplit(".", 1)
    module = importlib.import_module(path)
    fake = create_autospec(getattr(module, name), return_value=returns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fake)
        run_tool(command, extra)
    assert fake.called
    return fake.call_args


class Desk:
    """A folder in which the commands of the pages are given, each at most once."""

    def __init__(self, folder: Path, small: bool) -> None:
        self.folder, self.small, self.done = folder, small, set()
        for name in ("benchmarks", "configs", "tools", "studies", "checkpoints", "docs", "tests"):
            (folder / name).symlink_to(ROOT / name)
        Image.fromarray(draw_shape(seed=1, index=5).image).save(folder / "shape.png")
        torch.save(released_state_dict(), folder / "SOFT_Tiny.pth")
        torch.save(timm.create_model("soft_pico", num_classes=3).state_dict(), folder / "FILE")

    def run(self, command: str) -> None:
        if command in self.done:
            return
        key = key_of(command)
        case = CASES[key]
        for other in case.needs:
            self.run(next(given for given in COMMANDS if key_of(given) == other))
        extra = shlex.split(case.extra)
        if not self.small:
            run_tool(
                command, shlex.split(next((extra for key, extra in IN_FULL.items() if command.startswith(key)), ""))
            )
        elif case.replaced:
            call = call_of(command, case.replaced, case.returns, extra)
            if case.replaced.endswith(".train"):
                load_config(*call.args, call.kwargs["options"])
        else:
            run_tool(command, extra)
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
    assert sorted(COMMANDS) == sorted([*LOCAL, *OF_SEVERAL, *INSTALLATIONS, *BY_CI, *ON_A_GPU])
    unused = CASES.keys() - {key_of(command) for command in COMMANDS}
    assert not unused, "take out what no page shows"


@pytest.mark.parametrize("command", LOCAL)
def test_command(desk, command):
    desk.run(command)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [command for command in LOCAL if " FILE " not in command and "/path/to/" not in command]
)
def test_command_in_full(desk, command):
    desk.run(command)


@pytest.mark.slow
def test_accuracy_that_the_page_states(desk, capsys):
    desk.run(DEMO)
    # Training, if no other test has asked for it before, says the accuracy after each epoch.
    capsys.readouterr()
    run_tool(next(command for command in COMMANDS if command.startswith("python tools/test.py configs/demo")))
    top1 = float(capsys.readouterr().out.split("accuracy/top1: ")[1].split()[0])
    # The last digit depends on the machine's products of matrices.
    assert top1 == pytest.approx(97.7, abs=1)


def test_extras_exist():
    lists = (re.search(r"\[([\w,]+)\]", command) for command in INSTALLATIONS)
    extras = {extra for found in lists if found for extra in found[1].split(",")}
    assert extras
    assert extras <= {path.stem for path in (ROOT / "requirements").glob("*.txt")}


def recorder(folder: Path, name: str) -> Path:
    """A program that writes its arguments, one a line, to folder/recorded."""
    program = folder / name
    program.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" >"{folder}/recorded"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("command", OF_SEVERAL)
def test_command_of_several_processes_reaches_the_run(tmp_path, monkeypatch, command):
    recorder(tmp_path, "srun")
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHON": str(recorder(tmp_path, "python")), "PATH": path}
    subprocess.run(["bash", *shlex.split(command)], cwd=ROOT, env=environment, check=True)
    given = (tmp_path / "recorded").read_text().splitlines()
    place = next(index for index, word in enumerate(given) if word.endswith(("tools/train.py", "tools/test.py")))
    monkeypatch.chdir(ROOT)
    function = DISTRIBUTED[command.split()[0]]
    evaluates = "evaluate" in function
    call = call_of(shlex.join(["python", *given[place:]]), function, {} if evaluates else "ended")
    assert call.kwargs["launcher"] == ("slurm" if "slurm" in command else "pytorch")
    subject = call.args[0]
    config = load_config(subject.config, subject.options) if evaluates else load_config(subject, call.kwargs["options"])
    assert config.data_root.startswith("/path/to/")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes on gloo need a machine without a GPU")
def test_imagenet_commands_on_two_processes(desk):
    make_tree(desk.folder / "images", "imagefolder", train=40, val=20, size=64)
    options = "data_root=images num_classes=10 train_cfg.max_epochs=1 train_dataloader.batch_size=4"
    for loader in ("train", "val", "test"):
        options += f" {loader}_dataloader.num_workers=0 {loader}_dataloader.persistent_workers=False"
    for command in [command for command in OF_SEVERAL if "imagenet" in command and "slurm" not in command]:
        command = command.replace(" 8 ", " 2 ").replace("epoch_300", "epoch_1")
        words = shlex.split(command.replace("data_root=/path/to/imagenet", options))
        environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(["bash", *words], env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-2000:]


SNIPPETS = {
    f"{page.stem}-{index}": snippet
    for page in PAGES
    if page.stem != "CONTRIBUTING"
    for index, snippet in enumerate(blocks(page.read_text(), "python"))
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet(desk, name):
    exec(SNIPPETS[name], {})


CALLS = list(
    dict.fromkeys(code for code in inline_code(TEXT) if "relu" not in code and code.startswith("timm.create_model("))
)


@pytest.mark.parametrize("call", CALLS)
def test_call(desk, call):
    if "published/" in call:
        desk.run(next(command for command in COMMANDS if command.startswith(PUBLISH)))
    for name, model in (("SOFT_Tiny_cuda", "soft_tiny.fudan_cuda_in1k"), ("SOFT_Small_norm", "soft_small")):
        if f'"{model}"' in call:
            torch.save(timm.create_model(model.split(".")[0]).state_dict(), desk.folder / f"{name}.pth")
    assert isinstance(eval(call, {"timm": timm}), torch.nn.Module)


@pytest.mark.parametrize("page", [*PAGES, *READ_ONLY], ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page):
    # What the worked example of CONTRIBUTING.md makes.
    example = ["soft_vit/layers/attention/relu.py", "tests/layers/attention/test_relu.py"]
    assert missing_paths(page) == (example if page.stem == "CONTRIBUTING" else [])


def test_pictures_are_shown_and_small():
    shown = set(re.findall(r"images/([\w.]+)", TEXT))
    images = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert shown == images.keys()
    assert max(images.values()) < 150_000


def test_table_of_models():
    """Depths are those of the models; accuracies and links are those of the index."""
    lines = (ROOT / "README.md").read_text().splitlines()
    for row in [line.split("|")[1:-1] for line in lines if line.startswith("| `soft")]:
        names, _, depths, top1, weights = (cell.strip() for cell in row)
        models = re.findall(r"`(\w+)`", names)
        assert {SIZES[model.split("_")[-1]]["depths"] for model in models} == {tuple(map(int, depths.split()))}
        entries = [entry for entry in load_index() if entry.model in models]
        assert {float(figure) for figure in top1.split()[:1]} == {m.value for entry in entries for m in entry.metrics}
        links = re.findall(r"https://drive.google.com/file/d/([\w-]+)/view", weights)
        assert all(any(link in str(entry.sources) for entry in entries) for link in links)


def test_options_of_the_models_exist():
    """The names in the first column of the table of options."""
    table = (ROOT / "docs" / "models.md").read_text().split("| option | values |\n|---|---|\n")[1].split("\n\n")[0]
    named = {code for row in table.splitlines() for code in inline_code(row.split("|")[1])}
    assert named <= {*signature(PyramidViT.__init__).parameters, *attention_options(ATTENTIONS["soft"])}


def test_groups_of_attentions_are_complete():
    table = (ROOT / "docs" / "attentions.md").read_text().split("| group | names |\n|---|---|\n")[1].split("\n\n")[0]
    named = {code for row in table.splitlines() for code in inline_code(row.split("|")[2])} - {"elu + 1", "relu"}
    assert named == ATTENTIONS.keys() - {"soft", "soft_norm", "soft_plus"}
