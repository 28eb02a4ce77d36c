"""InLine in the body of DeiT, whose contract is that of timm's own ViT."""

import pytest
import timm
import torch
from models.zoo.families import SMALL
from models.zoo.generated import images, relative_error, shapes

from soft_vit.models import checkpoint_filter_fn


def test_deit_takes_images_of_other_sizes() -> None:
    """Set, or given at once; the position embedding is resampled as a file's is."""
    torch.manual_seed(0)
    name, small = SMALL["inline_deit"]
    model, wide = (timm.create_model(name, **small, img_size=size).eval() for size in (64, (64, 96)))
    wide.load_state_dict(checkpoint_filter_fn(model.state_dict(), wide))
    x = images(2, 64, 96)
    with torch.no_grad():
        assert relative_error(model(x), wide(x)) < 1e-5
        assert relative_error(model(x[:1]), model(x)[:1]) < 1e-5


def test_deit_of_another_width_is_refused(tmp_path) -> None:
    weights = {name: torch.zeros(shape) for name, shape in shapes("inline_deit", "inline_deit_tiny").items()}
    torch.save({"model": weights}, tmp_path / "tiny.pth")
    with pytest.raises(ValueError, match="do not fit inline_deit_small"):
        timm.create_model(
            "inline_deit_small", pretrained=True, pretrained_cfg_overlay={"file": str(tmp_path / "tiny.pth")}
        )
