"""Commands and snippets of README.md, CONTRIBUTING.md and docs/ run, and the pages' figures and paths are correct.

A command runs as a page shows it, with options of `OPTIONS` that make it small. A command that has tests of its own
ends in the function of `ENDS_IN`, whose arguments are checked.
"""

import importlib
import json
import re
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import matplotlib
import pytest
import timm
import torch
from documents import ROOT, blocks, commands, inline_code, missing_paths, run_tool
from mmengine.registry import DATASETS, HOOKS, MODELS, init_default_scope
from PIL import Image
from released import released_shapes

from soft_vit.data import draw_shape
from soft_vit.data.features import write_features
from soft_vit.engine.config import resolve
from soft_vit.models import identify
from studies.softmax import ModelRow

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("benchmarks", "checkpoints", "configs", "configs/baselines", "tools")
READ_ONLY = [ROOT / folder / "README.md" for folder in FOLDERS]
TEXT = "\n".join(page.read_text() for page in PAGES)
COMMANDS = commands(TEXT)


DEMO = "python tools/train.py configs/demo/soft_pico_shapes.py"
COCO = "python tools/data/make_shapes.py data/shapes_coco --task coco"
PUBLISH = "python tools/weights/publish_checkpoint.py work_dirs"
FEW_SHAPES = "--cfg-options val_dataloader.dataset.length=20 test_dataloader.dataset.length=20"
# Options that make a command small, by how it begins. The longest beginning counts.
OPTIONS = {
    DEMO: f"{FEW_SHAPES} train_dataloader.dataset.length=16 train_dataloader.batch_size=8 train_cfg.val_interval=5",
    "python tools/test.py configs/demo/": FEW_SHAPES,
    "python tools/data/make_shapes.py": "--train 2 --val 1 --img-size 64",
    "python tools/weights/convert_checkpoint.py FILE": "--model soft_pico",
    "python tools/weights/publish_checkpoint.py FILE": "--model soft_pico --mean 0.5 0.5 0.5 --std 0.25 0.25 0.25",
    "python tools/analysis/attention_health.py": "--num-images 10 --num-matrices 1",
    "python tools/analysis/attention_spectrum.py": "--img-size 64 --shapes 1",
    "python tools/analysis/visualize_attention.py": "--img-size 64",
    "python -m benchmarks models --published": "--img-size 64 --rounds 3",
    "python tools/export.py --model efficientvit": "--no-pretrained",
    "python -m studies claims": "--only 17",
    "python -m studies claims --": "",
    "python -m studies gym": "--no-train",
    "python -m studies gym --tasks listops --kinds gau": "--help",
    "python -m studies linearise": "--no-train",
    "python -m studies softmax": "--out softmax.md",
    "python -m docs.generate": "--out written",
    # Run by tests/tools/test_app_browser.py and tests/distributed/test_runs.py.
    "python tools/app.py": "--help",
    "python tests/distributed/kill_trials.py": "--help",
    # Run by tests/studies/test_real.py and tests/export/test_dense.py.
    "python -m studies real": "--help",
    "python tools/export.py --config": "--help",
}
# Functions that take long and have tests of their own, and the values to return instead, by how a command begins.
ENDS_IN = {
    "python tools/train.py": ("soft_vit.engine.run.train", "ended"),
    f"{DEMO} --cfg-options": ("soft_vit.engine.run.train", "ended"),
    "python tools/test.py": ("soft_vit.engine.evaluate.evaluate", {}),
    "python tools/test.py configs/demo/soft_pico_labels.py": ("soft_vit.engine.evaluate.evaluate", {}),
    "python tools/predict.py /path": ("soft_vit.predict.predict_files", SimpleNamespace(exit_code=0)),
    "python tools/predict.py data/": ("soft_vit.predict.predict_files", SimpleNamespace(exit_code=0)),
    "python tools/export.py": ("soft_vit.export.export", None),
    "python tools/export.py --model efficientvit": ("soft_vit.export.export", None),
    "python tools/weights/check_checkpoint.py": ("soft_vit.models.identify.describe_file", []),
    "python tools/linearise.py": ("soft_vit.linearise.linearise", None),
    "python tools/pretrain.py": ("soft_vit.engine.pretrain", None),
    "python -m benchmarks models": ("benchmarks.models.measure_models", []),
    "python -m benchmarks models --published": ("benchmarks.models.published_names", ["soft_pico"]),
    "python -m benchmarks operator": ("benchmarks.operator.measure_operators", []),
    "python -m benchmarks attentions": ("benchmarks.attentions.compare_attentions", []),
    "python -m benchmarks memory": ("benchmarks.memory.measure_savings", {"plain": 1}),
    "python -m benchmarks deploy": ("benchmarks.deploy.measure_deploy", []),
    "python -m benchmarks resolution": ("benchmarks.resolution.measure_resolutions", {}),
    "python -m benchmarks large": ("benchmarks.large.measure_large", []),
    "python -m benchmarks atlas ": ("benchmarks.atlas.measure.measure", [[]]),
    "python -m studies softmax": ("studies.softmax.measure_model", ModelRow("soft_pico", (), (), 0, (0, 0))),
    "python -m docs.generate": ("docs.generate.pages.generated", ""),
}
# Files that a command uses, and the beginning of the command that makes them.
NEEDS = {"work_dirs/soft_pico_shapes/": DEMO, "data/shapes_coco/": COCO, "published/": PUBLISH}
NEEDS |= {'"features/shape': "python tools/extract.py shape.png"}
NEEDS["data/shapes_ade/"] = COCO.replace("coco", "ade")
# The command that a script starts in each process. tests/tools/test_launch_scripts.py runs the scripts.
SCRIPTS = {
    r"tools/dist_train.sh (\S+) \d(?: --max-restarts \d)?": r"python tools/train.py \1",
    r"tools/dist_test.sh (\S+ \S+) \d": r"python tools/test.py \1",
    r"tools/slurm_train.sh \S+ \S+ (\S+) (\S+)": r"python tools/train.py \1 --work-dir \2",
}
STARTED = [re.sub(script, program, command) for command in COMMANDS for script, program in SCRIPTS.items()]
# CI runs pytest, ruff and mypy, and builds the site; tests of benchmarks run gpu_report.sh. The demo's export takes a
# minute, and tests/docs/test_generated.py compares what it wrote.
RUN = [command for command in dict.fromkeys(STARTED) if re.match(r"python (?!-m venv|-m docs.generate.demo)", command)]


def beginning(table: Mapping[str, object], command: str) -> str:
    """Return the longest key of table that a command begins with, or ""."""
    return max((key for key in table if command.startswith(key)), key=len, default="")


def call_of(command: str, function: str, returns: object, extra: Sequence[str] = ()):
    """Run a tool that calls a function, by its dotted name, and return the call. Its arguments fit the function."""
    # By import_module, as soft_vit.engine has functions with the names of their modules.
    path, name = function.rsplit(".", 1)
    module = importlib.import_module(path)
    fake = create_autospec(getattr(module, name), return_value=returns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fake)
        run_tool(command, extra)
    assert fake.called
    return fake.call_args


def zeros(model: str) -> dict[str, torch.Tensor]:
    """Weights of a model, each with one number in memory."""
    shapes = timm.create_model(model, device="meta").state_dict()
    return {key: torch.zeros((), dtype=value.dtype).expand(value.shape) for key, value in shapes.items()}


class Desk:
    """A folder in which the commands of the pages run, each at most once. `images` holds data in all layouts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done = folder, set()
        # Configs of the package are found from any folder.
        for name in ("benchmarks", "tools", "studies", "checkpoints", "docs", "tests"):
            (folder / name).symlink_to(ROOT / name)
        image = Image.fromarray(draw_shape(seed=1, index=5).image)
        image.save(folder / "shape.png")
        for place in product(("train", "val"), ("cat", "dog")):
            (folder / "images").joinpath(*place).mkdir(parents=True)
            image.save((folder / "images").joinpath(*place, "1.png"))
        (folder / "images" / "classes.txt").write_text("cat\ndog\n")
        for kind in ("images", "annotations"):
            (folder / "images" / kind / "training").mkdir(parents=True)
            image.convert("L").save(folder / "images" / kind / "training" / "1.png")
        coco = {
            "images": [{"id": 1, "file_name": "cat/1.png", "width": image.width, "height": image.height}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 0, "bbox": [1, 1, 9, 9]}],
            "categories": [{"id": i, "name": name} for i, name in enumerate(("cat", "dog"))],
        }
        (folder / "images" / "train" / "_annotations.coco.json").write_text(json.dumps(coco))
        with tarfile.open(folder / "images" / "train-0000.tar", "w") as shard:
            shard.add(folder / "images" / "train" / "cat" / "1.png", "1.png")
            shard.addfile(tarfile.TarInfo("1.cls"))
        for name in "12":
            write_features(folder / "features" / f"{name}.safetensors", {"features": torch.zeros(2, 3).numpy()}, {})
        (folder / "bags.csv").write_text("file,label\nfeatures/1.safetensors,a\nfeatures/2.safetensors,b")
        torch.save({name: torch.zeros(shape) for name, shape in released_shapes().items()}, folder / "SOFT_Tiny.pth")
        torch.save(timm.create_model("soft_pico", num_classes=3).state_dict(), folder / "FILE")
        timm.models.save_for_hf(timm.create_model("soft_pico"), folder / "pretrained", safe_serialization=True)
        torch.save(zeros("efficientvit_seg_b1_ade20k"), folder / "efficientvit_seg_b1_ade20k.pt")

    def run(self, command: str) -> None:
        if command in self.done:
            return
        self.done.add(command)
        self.make_what_is_used_in(command)
        options, end = beginning(OPTIONS, command), beginning(ENDS_IN, command)
        extra = shlex.split(OPTIONS.get(options, ""))
        if len(end) < len(options) or not end:
            run_tool(command, extra)
            return
        call = call_of(command.replace("/path/to/images", "images"), *ENDS_IN[end], extra)
        if re.search(r"tools/(train|test)\.py", end):
            resolve(call.args[0], call.kwargs["options"])

    def make_what_is_used_in(self, text: str) -> None:
        for used, start in NEEDS.items():
            if used in text:
                # The one without options of its own.
                self.run(min((command for command in COMMANDS if command.startswith(start)), key=len))


@pytest.fixture(scope="module")
def the_desk(tmp_path_factory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture
def desk(the_desk, monkeypatch) -> Desk:
    """Return the desk as working folder, without a display."""
    monkeypatch.chdir(the_desk.folder)
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", str(the_desk.folder))
    # A file is compared with two models of other families instead of all.
    monkeypatch.setattr(identify, "FAMILY_MODELS", ["pola_pvt_tiny", "mlla_tiny"])
    monkeypatch.setattr("benchmarks.models.PEAK_SIDE", 32)
    matplotlib.use("Agg")
    return the_desk


@pytest.mark.parametrize("table", [OPTIONS, ENDS_IN], ids=["options", "ends_in"])
def test_tables_hold_what_pages_show(table):
    assert table.keys() == {beginning(table, command) for command in RUN} - {""}


@pytest.mark.parametrize("command", RUN)
def test_command(desk, command):
    desk.run(command)


@pytest.mark.slow
def test_accuracy_that_the_page_states(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for start in (DEMO, DEMO.replace("train.py", "test.py")):
        capsys.readouterr()
        command = next(command for command in COMMANDS if command.startswith(start) and "--cfg" not in command)
        run_tool(command.replace("configs/", f"{ROOT}/configs/").replace("tools/", f"{ROOT}/tools/"))
    top1 = float(capsys.readouterr().out.split("accuracy/top1: ")[1].split()[0])
    # The last digit depends on the machine.
    assert top1 == pytest.approx(97.7, abs=1)


SNIPPETS = {
    f"{page.stem}-{index}": snippet
    for page in PAGES
    # tests/test_contributing.py runs its code.
    if page.stem != "own_attention"
    for index, snippet in enumerate(blocks(page.read_text(), "python"))
}
# Pages whose snippets take half of the time; tests/dense, tests/probe and tests/weights call the same functions.
SLOW = ("dense-", "weights-", "when_something_looks_wrong-")


NAMES = [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(SLOW)) for name in SNIPPETS]


@pytest.mark.parametrize("name", NAMES)
def test_snippet(desk, name):
    code = SNIPPETS[name]
    if code.startswith("_base_"):
        # A config.
        path = desk.folder / f"{name}.py"
        path.write_text(code)
        cfg = resolve(path, {"data_root": "images", "load_from": None, "work_dir": str(desk.folder / name)})
        init_default_scope(cfg.default_scope)
        DATASETS.build(cfg.train_dataloader.dataset)
        model, small = cfg.model, {"model_name": "soft_pico", "pretrained": False}
        MODELS.build({**model, **({"backbone": {**model.backbone, **small}} if "backbone" in model else small)})
        for hook in cfg.get("custom_hooks", ()):
            HOOKS.build(hook)
        return
    if "transformers" in code:
        pytest.importorskip("transformers")
    desk.make_what_is_used_in(code)
    exec(code, {})


CALLS = list(dict.fromkeys(code for code in inline_code(TEXT) if code.startswith("timm.create_model(")))


@pytest.mark.parametrize("call", CALLS)
def test_call(desk, call):
    desk.make_what_is_used_in(call)
    for name, model in (("SOFT_Tiny_cuda", "soft_tiny.fudan_cuda_in1k"), ("SOFT_Small_norm", "soft_small")):
        if f'"{model}"' in call:
            torch.save(zeros(model.split(".")[0]), desk.folder / f"{name}.pth")
    assert isinstance(eval(call, {"timm": timm}), torch.nn.Module)


@pytest.mark.parametrize("page", [*PAGES, *READ_ONLY], ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page):
    assert [path for path in missing_paths(page) if page.stem != "CONTRIBUTING" or "NAME" not in path] == []
