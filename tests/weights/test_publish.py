"""Publishing: the weights with a digest, an entry, a card, and a repository of the hub."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from publications import METRIC, NOTES, SECRET, run

from soft_vit.data import CLASSES, draw_shape
from soft_vit.export import load_export_model
from soft_vit.weights import load_index

# Publishing: the weights with a digest and an entry, without other contents of the checkpoint.


def test_file_and_entry(published):
    (entry,) = load_index(published / "index.json")
    data = (published / entry.file).read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry.sha256
    assert entry.file == f"soft_pico.mine-{entry.sha256[:8]}.safetensors"
    assert (entry.size, entry.license, entry.metrics) == (len(data), "mit", (METRIC,))
    assert NOTES.cfg.items() <= entry.cfg.items()


def test_other_contents_are_not_published(published):
    files = [path for path in published.rglob("*") if path.is_file()]
    assert len(files) == 6
    for path in files:
        content = path.read_bytes()
        for trace in (SECRET, "/home", "/tmp", str(published)):
            assert trace.encode() not in content, path


UNKNOWN = [{}, {"mean": [0.5], "std": [0.5]}, {"mean": [math.nan] * 3}, {"std": [0.5, 0, 0.5]}]


@pytest.mark.parametrize("given", UNKNOWN, ids=str)
def test_the_normalisation_must_be_known(given, averaged, tmp_path):
    torch.save(averaged, tmp_path / "bare.pth")
    with pytest.raises(ValueError, match="--mean and --std"):
        run(tmp_path / "bare.pth", tmp_path / "out", model="soft_pico", **given)


MISTAKES = [
    ({"tag": "../mine"}, "tag must be"),
    ({"config": "/home/me/config.py"}, "config must be"),
    ({"model": "soft_norm_pico"}, "must be soft_pico, .*, got soft_norm_pico"),
    ({"checkpoint": "no head.pth", "model": "soft_pico"}, "must have a head"),
    ({"checkpoint": "bare.pth"}, "--model"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=str)
def test_mistakes_write_nothing(options, message, checkpoint, averaged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(averaged, "bare.pth")
    torch.save({name: value for name, value in averaged.items() if not name.startswith("head.")}, "no head.pth")
    with pytest.raises(ValueError, match=message):
        run(**{"checkpoint": checkpoint, "out": "out", **options})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare.pth", "no head.pth"]


# Repositories of the Hugging Face hub: folders that timm reads, and uploads.


def test_hub_folder(published):
    folder = published / "hub"
    # Exported, it names the model instead of a folder of this machine.
    assert load_export_model(f"local-dir:{folder}").name == "soft_pico"
    config = json.loads((folder / "config.json").read_text())
    assert config["label_names"] == list(CLASSES)
    assert config["pretrained_cfg"]["mean"] == [0.5] * 3
    assert config["pretrained_cfg"]["std"] == pytest.approx([64 / 255] * 3)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert 'timm.create_model("hf-hub:' in (folder / "README.md").read_text()


def test_hub_folder_with_other_files_is_refused(checkpoint, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="must be an empty folder"):
        run(checkpoint, tmp_path / "out", hf_dir=tmp_path)


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


# The model card: its header, its facts, its snippet and its papers.


def test_snippet_of_the_card_gives_the_model(published, assert_published, monkeypatch):
    monkeypatch.chdir(published)
    code = (published / "soft_pico.mine.md").read_text().split("```python")[1].split("```")[0]
    names: dict = {}
    exec(code, names)
    assert_published(names["model"])
    shape = Image.fromarray(draw_shape(seed=1, index=5).image)
    # The whole image, with values from -2 to 2.
    image = (torch.from_numpy(np.array(shape)).permute(2, 0, 1) - 127.5) / 64
    torch.testing.assert_close(names["transform"](shape), image)
