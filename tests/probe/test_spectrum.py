"""Spectra that are known beforehand, and those of a model."""

import numpy as np
import pytest
import timm
import torch

from soft_vit.probe.spectrum import cumulative_singular_values, measure_spectrum

# Float32 singular values of matrices with at most 64 rows, relative to the largest: 64 roundings of 1.2e-7.
TOLERANCE = 1e-5


def orthogonal(size: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(size, size))[0]


def test_known_spectra():
    line = torch.arange(1, 64, dtype=torch.float64) / 63
    ones = torch.ones(63, dtype=torch.float64)
    cases = [(torch.eye(63), line), (3 * orthogonal(63), line), (torch.randn(63, 1) @ torch.randn(1, 63), ones)]
    # Fewer keys than tokens, and more.
    matrices = torch.stack([orthogonal(7)[:, :4] * torch.tensor([4.0, 3, 2, 1]) @ orthogonal(4) for _ in range(3)])
    expected = torch.tensor([0.4, 0.7, 0.9, 1, 1, 1, 1], dtype=torch.float64).expand(3, -1)
    cases += [(matrices, expected), (matrices.mT, expected[:, :4])]
    for number, (matrix, curve) in enumerate(cases):
        found = cumulative_singular_values(matrix)
        torch.testing.assert_close(found, curve, rtol=0, atol=TOLERANCE, msg=f"case {number}")
    assert torch.equal(cumulative_singular_values(torch.zeros(2, 5, 5)), torch.ones(2, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="finite"):
        cumulative_singular_values(torch.full((5, 5), torch.nan))


def test_spectrum_of_a_model_is_the_mean_over_images():
    size = (64, 96)
    model = timm.create_model("softmax_pyramid_pico", img_size=size).eval()
    images = [torch.randn(3, *size) for _ in range(2)]
    spectra = measure_spectrum(model, images)
    places = [(s.stage, s.layer, s.attention, *s.cumulative.shape) for s in spectra]
    # Heads and tokens of each stage; the last one has a class token.
    assert places == [
        (1, 1, "softmax", 1, 16 * 24),
        (2, 1, "softmax", 2, 8 * 12),
        (3, 1, "softmax", 4, 4 * 6),
        (3, 2, "softmax", 4, 4 * 6),
        (4, 1, "softmax", 5, 2 * 3 + 1),
    ]
    single = [measure_spectrum(model, [image]) for image in images]
    for both, first, second in zip(spectra, *single, strict=True):
        np.testing.assert_allclose(both.cumulative, (first.cumulative + second.cumulative) / 2, atol=TOLERANCE)
        assert (np.diff(both.cumulative) >= 0).all()
    assert not any("attend" in vars(module) for module in model.modules())
