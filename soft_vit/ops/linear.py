"""Linear attention in its three forms: for all tokens, causal in parallel, and causal as a recurrence.

`out_i = phi(q_i)^T sum_j phi(k_j) v_j^T / phi(q_i)^T sum_j phi(k_j)` (Katharopoulos et al. 2020, arXiv 2006.16236,
Eq. 5), the sums over all j, or over j <= i where causal. The causal functions take features, `phi(q)` and `phi(k)`.

Letters: B batch, H heads, N tokens, M features, D channels of a value; G chunks of L tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from soft_vit.ops.chunked import map_tokens, max_over_tokens, sum_over_tokens
from soft_vit.ops.layout import WHOLE, fill_padding
from soft_vit.ops.numerics import at_least, at_least_float32, check_choice, full_precision
from soft_vit.ops.packed import AnyLayout

# Below any sum of features of reasonable inputs; avoids 0 / 0 where features underflow.
MIN_NORMALIZER = 1e-20


class LinearAttentionState(NamedTuple):
    """The state of the recurrence: sums over the tokens so far of `phi(k) v^T` and of `phi(k)`."""

    kv: Tensor
    """`[B, H, M, D]`."""
    k: Tensor
    """`[B, H, M]`."""


def elu_features(x: Tensor) -> Tensor:
    """Return `elu(x) + 1`, at least fp32: `x + 1` above zero and `exp(x)` below, which does not round to zero."""
    x = at_least_float32(x)
    # Without `where` and the gradient of `clamp`, which takes longer than all the rest.
    positive = x.relu()
    return positive + (x - positive).exp_()


def relu_features(x: Tensor) -> Tensor:
    """Return `relu(x)`, at least fp32."""
    return at_least_float32(x).relu()


Features = Literal["elu", "relu"]
FEATURE_MAPS = {"elu": elu_features, "relu": relu_features}


def feature_attention(q: Tensor, k: Tensor, v: Tensor, layout: AnyLayout = WHOLE, features: Features = "elu") -> Tensor:
    """Return `linear_attention` of q and k before their features, by the name of these.

    features: `elu` for `elu + 1`, or `relu` (EfficientViT, Cai et al. 2022, arXiv 2205.14756).
    """
    return linear_attention(q, k, v, layout, phi=FEATURE_MAPS[check_choice("features", features, tuple(FEATURE_MAPS))])


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AnyLayout = WHOLE,
    eps: float = 0.0,
    phi: Callable[..., Tensor] = at_least_float32,
    phi_q: Callable[..., Tensor] | None = None,
    positions: Tensor | None = None,
    weights: Sequence[Tensor] = (),
) -> Tensor:
    """Let each token attend to all tokens except padding, in time and memory linear in N.

    q, k: `[B, H, N, M]`; v: `[B, H, N, D]`. The result `[B, H, N, D]` has v's dtype; all inside is at least fp32.
    eps: added to the weight of each token when the weights of a row are divided by their sum.
    phi: returns the features of some tokens of q or k, which must not be negative: `phi(x, *weights)`, or
        `phi(x, positions, *weights)` with positions. Gradients reach weights, but not tensors that phi closes over.
    phi_q: phi of q, by default phi.
    positions: `[1 or B, 1, N, ...]`.
    """
    dtype, phi_q = v.dtype, phi_q or phi
    at = () if positions is None else (positions,)
    extra = eps and eps * layout.num_tokens(k)

    def state(k: Tensor, v: Tensor, mask: Tensor | None, *rest: Tensor) -> tuple[Tensor, Tensor]:
        k = fill_padding(phi(k, *rest), mask)
        return k.mT @ fill_padding(at_least_float32(v), mask), k.sum(2)[..., None]

    def read(q: Tensor, *rest: Tensor) -> Tensor:
        *given, kv, k_sum = rest
        q = phi_q(q, *given)
        return (q @ kv * (q @ k_sum + extra).clamp(min=MIN_NORMALIZER).reciprocal()).to(dtype)

    sums = sum_over_tokens(state, (k, v, layout.token_mask, *at), tuple(weights))
    return map_tokens(read, (q, *at), (*weights, *map(layout.total, sums)))


def exponential_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: AnyLayout,
    of_q: Callable[..., Tensor],
    of_k: Callable[..., Tensor],
    weights: Sequence[Tensor],
) -> Tensor:
    """Return `linear_attention` by features that are exponentials of `of_q(q, *weights)` and `of_k(k, *weights)`.

    The largest exponent of each feature over the keys moves from the keys to the queries, and that of each query
    cancels in the attention, so that no input overflows and the normaliser is at least one.
    """

    def exponents(k: Tensor, mask: Tensor | None, *weights: Tensor) -> Tensor:
        return fill_padding(of_k(k, *weights), mask, -math.inf)

    def key_features(k: Tensor, *rest: Tensor) -> Tensor:
        *weights, largest = rest
        # Padding may have larger ones. A bound of 0 would stop the gradient of the largest.
        return (of_k(k, *weights) - largest).clamp(max=1).exp()

    def query_features(q: Tensor, *rest: Tensor) -> Tensor:
        *weights, largest = rest
        exponent = of_q(q, *weights) + largest
        return (exponent - exponent.detach().amax(-1, keepdim=True)).exp()

    largest = layout.largest(max_over_tokens(exponents, (k, layout.token_mask), tuple(weights)))
    return linear_attention(q, k, v, layout, phi=key_features, phi_q=query_features, weights=(*weights, largest))


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor, chunk_size: int = 64) -> Tensor:
    """Let each token attend to itself and to those before it, for all tokens in parallel.

    q, k: features `[B, H, N, M]`, not negative; v: `[B, H, N, D]`. The result `[B, H, N, D]` has v's dtype; everything
    inside is at least fp32.

    Chunks of L = chunk_size tokens take weights of all pairs inside and running sums between chunks. These are `N L`
    and `N M D / L` numbers, instead of an M x D matrix for each token.
    """
    at_least("chunk_size", chunk_size)
    with full_precision(q):
        dtype, num_tokens = v.dtype, v.shape[2]
        # A column of ones makes the normaliser one more channel.
        v = F.pad(at_least_float32(v), (0, 1), value=1.0)
        padding = -num_tokens % chunk_size
        q, k, v = (F.pad(at_least_float32(x), (0, 0, 0, padding)).unflatten(2, (-1, chunk_size)) for x in (q, k, v))
        # The sum over earlier chunks; shifted, because subtracting a chunk from the sum would cancel.
        before = F.pad((k.mT @ v)[:, :, :-1], (0, 0, 0, 0, 1, 0)).cumsum(2)
        x = (q @ before + (q @ k.mT).tril() @ v).flatten(2, 3)[:, :, :num_tokens]
        return (x[..., :-1] / x[..., -1:].clamp(min=MIN_NORMALIZER)).to(dtype)


def linear_attention_init(k: Tensor, v: Tensor) -> LinearAttentionState:
    """Return the state before the first token, for features like k `[B, H, ..., M]`, values like v `[B, H, ..., D]`."""
    k, v = at_least_float32(k), at_least_float32(v)
    batch_heads, features, channels = k.shape[:2], k.shape[-1], v.shape[-1]
    return LinearAttentionState(k.new_zeros(*batch_heads, features, channels), k.new_zeros(*batch_heads, features))


def linear_attention_step(
    state: LinearAttentionState, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, LinearAttentionState]:
    """Compute one token of causal linear attention, in time and memory that do not grow with earlier tokens.

    q, k: features `[B, H, M]` of the token, v: its value `[B, H, D]`. Returns the result `[B, H, D]` in v's dtype, and
    the next state; the given state is not modified.
    """
    with full_precision(q):
        dtype = v.dtype
        q, k, v = at_least_float32(q), at_least_float32(k), at_least_float32(v)
        state = LinearAttentionState(state.kv + k[..., :, None] * v[..., None, :], state.k + k)
        normalizer = (q * state.k).sum(-1, keepdim=True).clamp(min=MIN_NORMALIZER)
        return ((q[..., None, :] @ state.kv)[..., 0, :] / normalizer).to(dtype), state
