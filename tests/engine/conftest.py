"""What tests of the engine share."""

from pathlib import Path

import pytest
import torch
from evaluated import network, write_checkpoint, write_folders, write_tree


@pytest.fixture(scope="module")
def models() -> dict[str, torch.nn.Module]:
    return {"averaged": network(seed=0), "plain": network(seed=1)}


@pytest.fixture(scope="module")
def checkpoint(models, tmp_path_factory) -> str:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), models)


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"), ("blue sky", "green", "red"), train=6, val=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    return write_folders(tmp_path_factory.mktemp("folders"))
