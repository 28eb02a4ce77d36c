"""Correlations on a map whose opposite edges meet, against sums of shifted maps."""

import pytest
import torch

from soft_vit.ops.circulant import correlate, correlate_by_fft, correlate_by_products

SIZES = [(5, 7), (4, 6), (1, 9), (8, 1), (2, 1), (1, 1)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("form", [correlate_by_fft, correlate_by_products])
def test_equals_sums_of_shifted_maps(form, size):
    """With all gradients."""
    maps = torch.randn(3, 2, *size, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b = (x.clone().requires_grad_() for x in maps[:2])
    sums = [(a * b.roll((-y, -x), (1, 2))).sum((1, 2)) for y in range(size[0]) for x in range(size[1])]
    expected, results = torch.stack(sums, dim=1).view_as(a), []
    for y in (form(a, b), expected):
        results.append([y, *torch.autograd.grad((y * maps[2]).sum(), (a, b))])
    for found, value in zip(*results, strict=True):
        # Sums of at most 35 products, and one more sum in the gradients.
        assert (found - value).abs().max() <= 1e-13


def test_maps_of_several_sizes_in_a_batch():
    shapes = [(6, 5), (3, 5), (2, 1), (6, 4)]
    maps = torch.zeros(2, len(shapes), 6, 5, 3, dtype=torch.float64)
    for i, (rows, columns) in enumerate(shapes):
        maps[:, i, :rows, :columns] = torch.randn(2, rows, columns, 3, dtype=torch.float64)
    found = correlate(*maps, counts=tuple(torch.tensor(shapes).T))
    for i, (rows, columns) in enumerate(shapes):
        alone = correlate(*maps[:, i : i + 1, :rows, :columns])
        assert (found[i, :rows, :columns] - alone[0]).abs().max() <= 1e-13
