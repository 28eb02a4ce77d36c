"""Outputs of the released implementations, reproduced through timm's own loading path."""

import pytest
import timm
import torch
from models.zoo.families import FAMILIES
from models.zoo.generated import FILES, GoldenFile, relative_error, released_state_dict


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
    names = {name.rsplit("_", 1)[0] for name in golden if name.endswith("_head")}
    for name in names & features.keys():
        feature, head = features[name], golden[f"{name}_head"]
        assert relative_error(feature.flatten()[: head.numel()], head) < row.tolerance, name
        mean_std = torch.stack([feature.double().mean(), feature.double().std(correction=int(row.unbiased))])
        torch.testing.assert_close(mean_std, golden[f"{name}_mean_std"].double(), rtol=0, atol=row.tolerance, msg=name)
