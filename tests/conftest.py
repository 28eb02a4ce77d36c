"""Settings and fixtures of all tests."""

import os
import sys

# Read when torch is first imported. Tests run in as many processes as there are cores, with a thread each; and waiting
# threads that spin make a busy machine many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def quick_runs():
    """Leave out the description of the machine and the layout of configs, which take longer than most runs here."""
    with pytest.MonkeyPatch.context() as patch:
        if "mmengine" in sys.modules:
            patch.setattr("mmengine.runner.runner.collect_env", dict)
            lines = property(lambda config: "".join(f"{key} = {value!r}\n" for key, value in config.to_dict().items()))
            patch.setattr("mmengine.config.Config.pretty_text", lines)
        yield


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)
