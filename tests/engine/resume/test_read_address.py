"""Checkpoints from an address: what the cache keeps apart, and one sentence for what cannot be fetched."""

import os
import re

import pytest
import torch
from crafted import Call, saved
from file_server import file_server
from mmengine.runner import CheckpointLoader

import soft_vit.engine  # noqa: F401  replaces the loaders of MMEngine
from soft_vit.weights.fetch import lookup_folders


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("SOFT_VIT_CHECKPOINTS", raising=False)
    return tmp_path / "hub" / "checkpoints"


def load(address: str) -> dict:
    return CheckpointLoader.load_checkpoint(address)


def refusal(address: str) -> str:
    with pytest.raises(ValueError, match=re.escape(address)) as refused:
        load(address)
    return str(refused.value)


def test_addresses_that_end_in_one_name(hub):
    with file_server(body=saved({"w": 1})) as first, file_server(body=saved({"w": 2})) as second:
        for _ in range(2):
            assert load(f"{first.url}/a/epoch_300.pth") == {"w": 1}
            assert load(f"{second.url}/epoch_300.pth?token=1") == {"w": 2}
        assert load(f"{first.url}/b/epoch_300.pth") == {"w": 1}
    assert (len(first.requests), len(second.requests)) == (2, 1)
    assert len(list(hub.rglob("????????????????-epoch_300.pth"))) == 3


def test_recorded_weights_are_not_replaced(hub):
    with file_server(body=saved({"w": 1})) as server:
        load(f"{server.url}/SOFT_Tiny.pth")
    assert hub in lookup_folders()
    assert not any((folder / "SOFT_Tiny.pth").exists() for folder in lookup_folders())


@pytest.mark.parametrize("path", ["/", "/x", "/x.ckpt", "/../..", "/a%2Fb+c.pth", f"/{'x' * 300}.pth"])
def test_names_that_are_no_file_of_weights(path, hub):
    with file_server(body=saved({"w": 1})) as server:
        assert load(server.url + path) == {"w": 1}
    (folder,) = hub.iterdir()
    assert [file.suffix for file in folder.iterdir() if not file.name.startswith(".")].count(".pth") == 1


@pytest.mark.parametrize(
    "address", ["http://example.org/x.pth", "http://127.0.0.1@example.org/x.pth", "http://[x/y.pth"]
)
def test_plain_http_is_refused(address, hub):
    refusal(address)
    assert not hub.exists()


@pytest.mark.parametrize("kind", ["missing", "cut off", "runs code"])
def test_what_is_no_checkpoint_is_not_kept(kind, hub, tmp_path):
    body = saved({"w": Call(os.mkdir, str(tmp_path / "owned"))} if kind == "runs code" else {"w": torch.ones(9)})
    with file_server(body=body[:-30] if kind == "cut off" else body) as server:
        server.status = [404] if kind == "missing" else []
        refusal(f"{server.url}/x.pth")
    assert not list(hub.rglob("*.pth"))
    assert not (tmp_path / "owned").exists()
