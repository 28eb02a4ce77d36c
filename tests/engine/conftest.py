"""What tests of the engine share."""

from pathlib import Path

import pytest
import torch
from evaluated import network, write_checkpoint, write_folders


@pytest.fixture(autouse=True, scope="session")
def quick():
    """Leave out the description of the machine and the layout of configs, which take longer than most runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmengine.runner.runner.collect_env", dict)
        lines = property(lambda config: "".join(f"{name} = {value!r}\n" for name, value in config.to_dict().items()))
        patch.setattr("mmengine.config.Config.pretty_text", lines)
        yield


@pytest.fixture(scope="module")
def models() -> dict[str, torch.nn.Module]:
    return {"averaged": network(seed=0), "plain": network(seed=1)}


@pytest.fixture(scope="module")
def checkpoint(models, tmp_path_factory) -> str:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), models)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    return write_folders(tmp_path_factory.mktemp("folders"))
