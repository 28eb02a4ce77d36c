"""Outputs of the released implementation, reproduced through timm's own loading path."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import timm
import torch
from released import GOLDEN, RELEASED_DEPTHS, check_features, draw, images, relative_error, released_state_dict
from torch import nn

from soft_vit.layers.attention.soft import SoftAttention
from soft_vit.models import PYRAMID_SIZES
from soft_vit.models.pyramid import rename_released
from soft_vit.ops.soft.options import NewtonStart

FILES = sorted(GOLDEN.glob("*.npz"))

# Relative L2 error of the logits. The released code in fp32 is within 9e-7 (well-conditioned kernels) and 1.2e-5
# (nearly flat ones) of itself in float64; the rest of the budget is another order of summation. Measured here, of
# logits and stages: at most 3.2e-6 and 2.6e-5.
LOGIT_TOLERANCE = {1.0: 2e-5, 0.5: 2e-4}


@dataclass
class Case:
    model_name: str
    batch: int
    height: int
    width: int
    seed: int
    scale: float
    options: dict

    @classmethod
    def of(cls, stem: str) -> "Case":
        name, batch, height, width, seed, scale = re.fullmatch(
            r"(\w+?)_b(\d+)_(\d+)x(\d+)_seed(\d+)_s([\d.]+)", stem
        ).groups()
        # The released rule looks at a whole batch.
        batch_wide = "norm" in name and int(batch) > 1
        return cls(
            model_name={"soft_small": "soft_base"}.get(name, name),
            batch=int(batch),
            height=int(height),
            width=int(width),
            seed=int(seed),
            scale=float(scale),
            options={"newton_start": "guarded_batch"} if batch_wide else {},
        )

    def model(self, path):
        depths = RELEASED_DEPTHS[self.model_name.replace("_norm", "")]
        torch.save({"state_dict": released_state_dict(depths, self.scale)}, path)
        overlay = {"file": str(path)}
        return timm.create_model(
            self.model_name, pretrained=True, pretrained_cfg_overlay=overlay, **self.options
        ).eval()

    def images(self) -> torch.Tensor:
        return images(self.batch, self.height, self.width, self.seed)

    def gradient_target(self, shape) -> torch.Tensor:
        return torch.from_numpy(np.random.RandomState(self.seed + 1).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize(
    "file",
    # Those of soft_tiny are as deep in every kind of stage.
    [pytest.param(file, marks=[pytest.mark.slow] * ("small" in file.stem)) for file in FILES],
    ids=lambda file: file.stem,
)
def test_outputs(file, tmp_path):
    golden, case = {name: torch.from_numpy(value) for name, value in np.load(file).items()}, Case.of(file.stem)
    model = case.model(tmp_path / "released.pth")
    with torch.no_grad():
        final, stages = model.forward_intermediates(case.images())
        logits = model.forward_head(final)
    tolerance = LOGIT_TOLERANCE[case.scale]
    assert relative_error(logits, golden["logits"]) < tolerance
    features = dict(zip(("stage1", "stage2", "stage3", "stage4_tokens"), [*stages[:3], final], strict=True))
    assert all(f"{name}_head" in golden for name in features)
    check_features(golden, features, tolerance, unbiased=True)


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if any("grad_norm" in key for key in np.load(file).files)],
    ids=lambda file: file.stem,
)
def test_gradient_norms(file, tmp_path):
    golden, case = np.load(file), Case.of(file.stem)
    model = case.model(tmp_path / "released.pth")
    logits = model(case.images())
    (logits * case.gradient_target(logits.shape)).sum().backward()
    norms = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
    expected = {
        rename_released(key.removeprefix("grad_norm/")): float(golden[key]) for key in golden.files if "/" in key
    }
    assert expected.keys() == norms.keys()
    off = {name: (norms[name], value) for name, value in expected.items() if abs(norms[name] - value) > 1e-4 * value}
    assert not off


@pytest.mark.parametrize("name", ["soft_tiny", "soft_norm_tiny"])
def test_single_precision_is_as_close_to_double_as_the_released_code(name, tmp_path):
    """On nearly flat kernels the released code has 1.2e-5 against itself; up to 2.5e-5 was measured here."""
    case = Case(name, 1, 160, 192, 5, 0.5, {})
    model = case.model(tmp_path / "released.pth")
    with torch.no_grad():
        single = model(case.images())
        double = model.double()(case.images().double())
    assert relative_error(single, double) < 2e-4


@pytest.mark.parametrize("name", ["soft_tiny", "soft_norm_tiny"])
@pytest.mark.parametrize(("scale", "dtype"), [(1.0, torch.float32), (0.5, torch.float64)])
def test_an_image_does_not_see_its_neighbours(name, scale, dtype, tmp_path):
    """On nearly flat kernels rounding alone is 1e-5 in fp32, and the order of a batched product may change with B."""
    case = Case(name, 3, 96, 128, 7, scale, {})
    model = case.model(tmp_path / "released.pth").to(dtype)
    x = case.images().to(dtype)
    x[1] *= 0.01
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(image[None]) for image in x])
    assert relative_error(together, alone) < 1e-5
    if "norm" in name and scale < 1:
        # With the released rule the difference is there.
        with torch.no_grad():
            assert relative_error(with_start(model, "guarded_batch")(x), alone) > 1e-7


def with_start(model: nn.Module, start: NewtonStart) -> nn.Module:
    for module in model.modules():
        if isinstance(module, SoftAttention):
            module.options = replace(module.options, newton_start=start)
    return model


@pytest.mark.parametrize(
    "name",
    ["tiny", *(pytest.param(size, marks=pytest.mark.slow) for size in PYRAMID_SIZES if size not in ("pico", "tiny"))],
)
def test_the_normalised_models_compute_each_image_as_the_released_rule_does_alone(name):
    """Bit for bit, on well-conditioned and nearly flat kernels: no safeguard acts."""
    with torch.device("meta"):
        model = timm.create_model(f"soft_norm_{name}").eval()
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    for scale in (1.0, 0.5):
        drawn = {key: draw(key.replace("attn.q.", "attn.W_q."), shape, scale) for key, shape in shapes.items()}
        model.load_state_dict(drawn, assign=True)
        for height, width in ((160, 192), (95, 130)):
            image = images(1, height, width, seed=3)
            with torch.no_grad():
                logits = [with_start(model, start)(image) for start in ("guarded_image", "guarded_batch")]
            assert torch.equal(*logits), (scale, height, width)
