"""Repositories of the Hugging Face hub: folders that timm reads, and uploads."""

import hashlib
import json
from pathlib import Path

import pytest
import timm
from publications import run

from soft_vit.data import CLASSES
from soft_vit.export import load_export_model
from soft_vit.weights import load_index


def test_hub_folder_is_read_by_timm(published, assert_published):
    folder = published / "hub"
    assert_published(timm.create_model(f"local-dir:{folder}", pretrained=True))
    # Exported, it names the model instead of a folder of this machine.
    assert load_export_model(f"local-dir:{folder}").name == "soft_pico"
    config = json.loads((folder / "config.json").read_text())
    assert config["label_names"] == list(CLASSES)
    assert config["pretrained_cfg"]["mean"] == [0.5] * 3
    assert config["pretrained_cfg"]["std"] == pytest.approx([64 / 255] * 3)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert 'timm.create_model("hf-hub:' in (folder / "README.md").read_text()


def test_hub_folder_with_other_files_is_refused(checkpoint, tmp_path):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="must be an empty folder"):
        run(checkpoint, tmp_path / "out", hf_dir=tmp_path / "hub")


class Hub:
    """Stands in for the hub: keeps the files of an upload."""

    files: dict[str, bytes] = {}  # noqa: RUF012  of all instances

    def create_repo(self, repo_id, exist_ok):
        if repo_id == "no/login":
            raise OSError("401 Unauthorized\nmore")

    def upload_folder(self, *, folder_path, repo_id):
        self.files.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()})

    def upload_file(self, *, path_or_fileobj, path_in_repo, repo_id):
        self.files[path_in_repo] = path_or_fileobj.read_bytes()


def test_push(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    run(checkpoint, tmp_path / "out", repo="me/soft_pico")
    (entry,) = load_index(tmp_path / "out" / "index.json")
    assert {"config.json", "model.safetensors", "README.md", entry.file} == Hub.files.keys()
    assert hashlib.sha256(Hub.files[entry.file]).hexdigest() == entry.sha256
    assert b'"hf-hub:me/soft_pico"' in Hub.files["README.md"]
    assert entry.sources == ("hf-hub:me/soft_pico",)
    with pytest.raises(ValueError, match=r"no/login .*\(401 Unauthorized\)"):
        run(checkpoint, tmp_path / "out", repo="no/login")
