"""Settings and fixtures of all tests."""

import gc
import importlib.util
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Read when torch is first imported. Tests run in as many processes as there are cores, with a thread each; and waiting
# threads that spin make a busy machine many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import pytest

# Where MMEngine is missing, as on a machine for `pytest -m gpu`, only tests of what needs torch and timm.
if importlib.util.find_spec("mmengine") is None:
    collect_ignore = [
        path.name for path in Path(__file__).parent.iterdir() if path.name not in ("gpu", "layers", "models", "ops")
    ]
else:
    # Its first import in an environment writes a cache, which processes that start together may read while it is empty.
    import yapf  # noqa: F401


def pytest_collection(session):
    """Collect no garbage while modules are imported, and never search for it among them."""
    gc.disable()


def pytest_collection_finish(session):
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def quick_runs():
    """Leave out what takes longer than most runs here: descriptions of machine and model, and the layout of configs.

    Whether a file of configs/ imports lazily is asked once, and all visualizers have one figure.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "mmengine" in sys.modules:
            patch.setattr("mmengine.runner.runner.collect_env", dict)
            patch.setattr("mmengine.runner.runner.get_git_hash", str)
            lines = property(lambda config: "".join(f"{key} = {value!r}\n" for key, value in config.to_dict().items()))
            patch.setattr("mmengine.config.Config.pretty_text", lines)
            lazy = sys.modules["mmengine"].config.Config._is_lazy_import
            known, configs = cache(lazy), str(Path(__file__).parents[1] / "configs")
            is_lazy = staticmethod(lambda file: (known if file.startswith(configs) else lazy)(file))
            patch.setattr("mmengine.config.Config._is_lazy_import", is_lazy)
            draw = sys.modules["mmengine"].visualization.Visualizer._initialize_fig
            figure = cache(lambda: draw(None, {"frameon": False}))
            patch.setattr("mmengine.visualization.Visualizer._initialize_fig", lambda *_: figure())
            # Every data set collects garbage, which takes longer than to read it.
            patch.setattr("mmengine.dataset.base_dataset.gc", SimpleNamespace(collect=int))
        yield


def draw_only(patch, needed):
    """Let layers draw the weights for which `needed` is true: to draw takes longer than to build a model."""
    import timm
    import torch

    init = torch.nn.init
    for module, name in (
        (init, "kaiming_uniform_"),
        (init, "_no_grad_uniform_"),
        (init, "_no_grad_normal_"),
        (timm.layers.weight_init, "_trunc_normal_"),
    ):
        draw = getattr(module, name)
        quick = lambda x, *args, draw=draw, **options: draw(x, *args, **options) if needed(x) else x  # noqa: E731
        patch.setattr(module, name, wraps(draw)(quick))


@pytest.fixture(autouse=True, scope="session")
def quick_seeds_and_meta_tensors():
    """Keep a seed for no device but the CPU, of which torch notes a traceback, and draw no numbers without memory."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            for module in (torch.cuda.random, torch.xpu.random, torch.mtia):
                patch.setattr(module, "_lazy_call", lambda call, **options: None)
        draw_only(patch, lambda x: not x.is_meta)
        yield


@pytest.fixture
def undrawn(monkeypatch):
    """Models whose weights all come from a file do not draw them first."""
    draw_only(monkeypatch, lambda x: False)


def pytest_addoption(parser):
    parser.addoption("--shard", metavar="I/N", help="every N-th test from the I-th on: several processes without xdist")
    if importlib.util.find_spec("xdist") is None:
        for option in ("--numprocesses", "--dist"):
            parser.addoption(option, help="of pyproject.toml; without pytest-xdist, there is one process")


# Last, so that shards are parts of what -m and -k leave.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep one shard, and skip what needs a GPU where there is none."""
    if shard := config.getoption("--shard"):
        index, count = map(int, shard.split("/"))
        kept = items[index - 1 :: count]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture
def logged(monkeypatch) -> list[str]:
    """Messages of all loggers. pytest's `caplog` comes with a look at all loggers in each phase of each test."""
    messages = []
    monkeypatch.setattr(logging.Logger, "handle", lambda logger, record: messages.append(record.getMessage()))
    return messages


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium, or else Playwright's own. Its sandbox does not work for root in a container."""
    with pytest.importorskip("playwright.sync_api").sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def fixed_seed():
    import torch

    torch.manual_seed(0)
