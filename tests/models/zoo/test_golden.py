"""Outputs of the released implementations, reproduced through timm's own loading path."""

import pytest
import timm
import torch
from models.zoo.families import FAMILIES
from models.zoo.generated import FILES, GoldenFile, family_of, relative_error, released_state_dict
from released import check_features

# The one of fewest pixels of the smallest model, for one row of each folder; other rows have the same mixer or body.
ROWS = {row.folder or family: row for family, row in reversed(FAMILIES.items()) if "_swin" not in family}
QUICK = [min((file for file in FILES if file.model == row.tiny), key=GoldenFile.pixels) for row in ROWS.values()]


MARKED = [pytest.param(file, id=file.path.stem, marks=[pytest.mark.slow] * (file not in QUICK)) for file in FILES]


@pytest.mark.parametrize("file", MARKED)
@pytest.mark.usefixtures("undrawn")
def test_outputs(file: GoldenFile, tmp_path) -> None:
    """Logits and stages; weights by timm's `file=`, at the size of the images, where the golden file has one."""
    golden, family, path = file.arrays(), family_of(file.model), tmp_path / "released.pth"
    torch.save({"model": released_state_dict(family, f"{file.model}@{file.height}")}, path)
    options = {"pretrained_cfg_overlay": {"file": str(path)}, "img_size": (file.height, file.width)}
    model = timm.create_model(file.model, pretrained=True, **options).eval()
    with torch.no_grad():
        final, stages = model.forward_intermediates(file.images())
        logits = model.forward_head(final)
    tolerance = FAMILIES[family].tolerance
    if "step" in golden:
        # Some of the numbers, and the norm of all.
        norm = golden["embedding_norm" if "embedding" in golden else "logits_norm"].item()
        assert logits.shape == tuple(golden["shape"].tolist())
        assert logits.double().norm().item() == pytest.approx(norm, rel=tolerance)
        logits = logits.flatten()[:: int(golden["step"])]
    assert relative_error(logits, golden.get("logits", golden.get("embedding"))) < tolerance
    features = {f"stage{i}": stage for i, stage in enumerate(stages, 1)}
    if stages[0].shape == stages[-1].shape:
        # Files count blocks from 0 or from 1.
        first = int("block0_head" not in golden)
        features |= {f"block{i}": stage.flatten(2).mT.contiguous() for i, stage in enumerate(stages, first)}
    features["tokens"] = final.flatten(2).mT.contiguous() if final.ndim == 4 else final
    check_features(golden, features, tolerance, FAMILIES[family].unbiased)
