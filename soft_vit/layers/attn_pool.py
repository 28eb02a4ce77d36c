"""Attention fusion: combine several feature vectors into one, each weighted by its own score.

Letters: B batch, P sources, C channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class AttentionPool(nn.Module):
    """`sum_p a_p h_p` with `a = softmax_p(c^T relu(W h_p + b))` over sources `h: [B, P, C]`, giving `[B, C]`.

    The additive attention of Bahdanau et al. 2014, arXiv 1409.0473, with a learned vector instead of a query.
    """

    def __init__(self, dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, dim, device=device, dtype=dtype)
        self.score = nn.Linear(dim, 1, bias=False, device=device, dtype=dtype)

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores `[B, P, 1]` of sources x `[B, P, C]`."""
        return self.score(self.hidden(x).relu())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Fuse sources `[B, P, C]` where mask `[B, P]` is True, by default all."""
        scores = self.scores(x)
        scores = scores if mask is None else scores.masked_fill(~mask[..., None], -torch.inf)
        return (scores.softmax(dim=1) * x).sum(dim=1)


class GatedAttentionPool(AttentionPool):
    """`AttentionPool` with `a = softmax_p(c^T (tanh(W h_p + b) * sigmoid(U h_p + d)))`.

    Ilse et al. 2018, arXiv 1802.04712, Eq. 9, for bags of instances.
    """

    def __init__(self, dim: int, device=None, dtype=None) -> None:
        super().__init__(dim, device, dtype)
        self.gate = nn.Linear(dim, dim, device=device, dtype=dtype)

    def scores(self, x: Tensor) -> Tensor:
        return self.score(self.hidden(x).tanh() * self.gate(x).sigmoid())


class StageFusion(nn.Module):
    """Fuse the pooled features of all stages to one vector: project them to the last width, then use `AttentionPool`.

    embed_dims: widths of the stages; the features of the last stage are not projected.
    """

    def __init__(self, embed_dims: Sequence[int], device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_earlier = len(embed_dims) - 1
        self.proj = nn.ModuleList([nn.Linear(dim, embed_dims[-1], **dd) for dim in embed_dims[:-1]])
        self.pool = AttentionPool(embed_dims[-1], **dd)

    def project(self, features: Sequence[Tensor]) -> Tensor:
        """Project pooled features `[B, C_i]` of the stages before the last to `[B, stages - 1, C]`."""
        return torch.stack([proj(x) for proj, x in zip(self.proj, features, strict=True)], dim=1)

    def forward(self, earlier: Tensor, last: Tensor) -> Tensor:
        """Fuse earlier, the result of `project`, and the last stage's pooled features `[B, C]` to `[B, C]`."""
        return self.pool(torch.cat([earlier, last[:, None]], dim=1))
