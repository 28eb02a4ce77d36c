"""Kernel matrices from conditioned to flat."""

import torch

from soft_vit.ops import self_gaussian_kernel

# Spread of the tokens: 0.5 gives condition numbers near 1, 0.05 and less flat kernels, 0 equal tokens.
SPREADS = (0.5, 0.2, 0.05, 0.01, 0.0)
UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2
STARTS = (("rowsum", 0.01), ("guarded_image", 0.0))


def kernel(spread: float, count: int = 6, m: int = 49, seed: int = 0) -> torch.Tensor:
    """Kernel matrices exactly symmetric and exactly representable in fp32, in float64."""
    tokens = torch.randn(count, m, 32, generator=torch.Generator().manual_seed(seed)) * spread
    a = self_gaussian_kernel(tokens)
    return ((a + a.mT) / 2).double()


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (actual.double() - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
