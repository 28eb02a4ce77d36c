"""The folder that the environment names."""

from pathlib import Path

import pytest

from soft_vit.weights import WeightsError
from soft_vit.weights.folders import download_folder, lookup_folders


@pytest.mark.parametrize("function", [download_folder, lookup_folders])
@pytest.mark.parametrize("named", ["{}/typo", "{}/file", "~nobody-of-that-name/x", "{}/typo\nmore"])
def test_a_named_folder_that_is_none(function, named, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", named.format(tmp_path))
    with pytest.raises(WeightsError, match=r"SOFT_VIT_CHECKPOINTS is .*, which is not a folder; ") as refused:
        function()
    assert len(str(refused.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_named_folder_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "~")
    assert download_folder() == lookup_folders()[0] == tmp_path


def test_without_a_name_downloads_go_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFT_VIT_CHECKPOINTS", "")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert download_folder() == lookup_folders()[-1] == tmp_path / "hub" / "checkpoints"
    assert download_folder("elsewhere") == Path("elsewhere")
