"""Outputs of the released implementations, reproduced through timm's own loading path."""

import pytest
import timm
import torch
from models.zoo.families import FAMILIES
from models.zoo.generated import FILES, GoldenFile, relative_error, released_state_dict
from released import check_features


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.path.stem, marks=[pytest.mark.slow] * (file.path.stem in FAMILIES[file.family].slow))
        for file in FILES
    ],
)
def test_outputs(file: GoldenFile, tmp_path) -> None:
    """Logits and stages; weights by timm's `file=`, at the size of the images, where the golden file has one."""
    golden, row, path = file.arrays(), FAMILIES[file.family], tmp_path / "released.pth"
    torch.save({"model": released_state_dict(file.family, f"{file.model}@{file.img_size[0]}")}, path)
    options = {"img_size": file.img_size} if row.at_size else {}
    model = timm.create_model(file.model, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, **options).eval()
    with torch.no_grad():
        final, stages = model.forward_intermediates(file.images())
        logits = model.forward_head(final)
    assert relative_error(logits, golden["logits"]) < row.tolerance
    features = {f"stage{i}": stage for i, stage in enumerate(stages, 1)}
    features["tokens"] = final.flatten(2).mT.contiguous() if final.ndim == 4 else final
    check_features(golden, features, row.tolerance, row.unbiased)
