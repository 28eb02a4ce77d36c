"""What CONTRIBUTING.md shows is true: its example, its commands, its paths, and the version in every place."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import yaml
from documents import ROOT, blocks, commands, extras_of, named_paths, run_tool

from soft_vit.layers import attention
from soft_vit.models import soft
from soft_vit.version import __version__

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
COMMANDS = commands(TEXT)


def test_worked_example_of_an_attention(tmp_path, monkeypatch):
    """As printed: the file as a module of its package, the lines where the table is, the test case by itself."""
    file, lines, case = blocks(TEXT, "python")
    (tmp_path / "relu.py").write_text(file)
    monkeypatch.setattr(attention, "__path__", [*attention.__path__, str(tmp_path)])
    names = {}
    try:
        exec(lines, dict(vars(attention)))
        exec(case, names)
        names["test_equals_the_dense_formula"]()
        assert "relu_pyramid_tiny" in soft._model_table()
        model = timm.create_model("soft_pico", attention="relu", img_size=64).eval()
        assert type(model.stages[0].blocks[0].attn).__name__ == "ReluAttention"
        assert model(torch.randn(1, 3, 64, 64)).isfinite().all()
    finally:
        attention.ATTENTIONS.pop("relu", None)
        sys.modules.pop("soft_vit.layers.attention.relu", None)
        vars(attention).pop("relu", None)


@pytest.mark.parametrize("place", [0, 2])
def test_worked_example_is_linted(place):
    """The file and the test case; the lines between them stand in a file that goes on."""
    for command in (["check", "-"], ["format", "--check", "-"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", "soft_vit/example.py"]
        done = subprocess.run(ruff, cwd=ROOT, input=blocks(TEXT, "python")[place], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def make_environment(folder: Path) -> None:
    """The first line, without pip, which is most of the work."""
    line = "python -m venv --without-pip .venv && source .venv/bin/activate && echo $VIRTUAL_ENV"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(folder / ".venv")


def require_extras(command: str) -> None:
    assert all((ROOT / "requirements" / f"{extra}.txt").is_file() for extra in extras_of(command))


def lint(command: str) -> None:
    subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=ROOT, check=True, capture_output=True)


def collect(command: str) -> None:
    """The tests that a command of pytest chooses in one file, without running them."""
    chosen = [*shlex.split(command)[1:], "--collect-only", "-q", "-n0", "-p", "no:cacheprovider"]
    assert pytest.main([*chosen, "-c", f"{ROOT}/pyproject.toml", f"{ROOT}/tests/tools/test_launch_scripts.py"]) == 0


def publish(command: str) -> None:
    torch.save(timm.create_model("soft_pico", num_classes=3).state_dict(), "FILE")
    run_tool(command, ["--model", "soft_pico", *["--mean", "0.5", "0.5", "0.5", "--std", "0.25", "0.25", "0.25"]])


CHECKS = {
    "python -m venv .venv": lambda command: make_environment(Path.cwd()),
    # Run together with the line before it.
    "source .venv/bin/activate": lambda command: None,
    "pip install -e '.[tests]'": require_extras,
    "pytest": collect,
    "pytest -m slow": collect,
    # tests/distributed/test_resume.py runs it in full, among the slow tests.
    "python tests/distributed/kill_trials.py --trials 20": lambda command: run_tool(command, ["--help"]),
    "ruff check .": lint,
    "ruff format --check .": lint,
    "python tools/publish_checkpoint.py FILE OUT --tag mine_in1k --licence mit": publish,
    "python tools/write_model_index.py": lambda command: run_tool(command, ["--out", "model-index.yml"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, tmp_path, monkeypatch):
    assert command in CHECKS, "put it into the table"
    monkeypatch.chdir(tmp_path)
    for name in ("tools", "tests", "checkpoints"):
        (tmp_path / name).symlink_to(ROOT / name)
    CHECKS[command](command)


def test_continuous_integration_gives_the_same_commands():
    text = (ROOT / ".ci" / "run").read_text()
    for line in ("'.[tests]'", "\npytest", "\nruff check .", "\nruff format --check ."):
        assert line in text


def test_paths_exist():
    # What the example makes.
    example = {"soft_vit/layers/attention/relu.py", "tests/layers/attention/test_relu.py"}
    missing = {path for path in named_paths(TEXT) if not any(ROOT.glob(path.rstrip("/")))}
    assert missing == example


def test_every_room_is_in_the_house():
    (house,) = re.findall(r"## The house\n```\n(.*?)```", TEXT, re.DOTALL)
    rooms = {f"soft_vit/{path.parent.name}" for path in (ROOT / "soft_vit").glob("*/__init__.py")}
    rooms |= {"configs", "tools", "tests", "checkpoints"}
    assert {line.split("/ ")[0] for line in house.splitlines() if not line.startswith(" ")} == rooms


def test_every_tool_is_in_the_list_of_tools():
    listed = set(re.findall(r"`(\w+\.(?:py|sh))`", (ROOT / "tools" / "README.md").read_text()))
    assert listed == {path.name for path in (ROOT / "tools").iterdir() if path.suffix in (".py", ".sh")}


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert {reference["identifiers"][0]["value"] for reference in citation["references"]} == {
        "arXiv:2110.11945",
        "arXiv:2207.03341",
    }
    versions = re.findall(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == __version__
