"""Claims about matrices and estimates, checked on tensors.

Letters: N tokens, D channels of a head, M bottleneck tokens, landmarks or features.
"""

import math
from collections.abc import Callable
from itertools import pairwise, product
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timer import log_log_slope
from soft_vit.ops import eigh_inverse, gaussian_kernel, newton_inverse, self_gaussian_kernel, soft_attention
from soft_vit.ops.flops import flop_counter
from soft_vit.ops.layout import Layout
from soft_vit.ops.linear import (
    causal_linear_attention,
    elu_features,
    linear_attention,
    linear_attention_init,
    linear_attention_step,
    relu_features,
)
from soft_vit.ops.performer import orthogonal_random_features
from soft_vit.ops.reformer import angular_buckets
from soft_vit.ops.vq import nearest_codes, vq_attention
from soft_vit.probe.cost import peak_memory
from soft_vit.probe.health import effective_rank
from studies.claims.table import Finding, claim, named, seconds, verdict

SOFT, SOFT_NORM = "arXiv 2110.11945", "arXiv 2207.03341"
LINEAR = "arXiv 2006.16236"

# Options of the operator in soft_norm_*.
NORMALISED = dict(normalize=True, ridge=0.0, newton_start="guarded_image")


def smooth_tokens(side: int, dim: int = 32, noise: float = 0.3, seed: int = 0) -> Tensor:
    """Return tokens `[side^2, D]` in float64 that vary slowly over a map and have norm sqrt(D), as after LayerNorm."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, dim, 4, 4, generator=generator, dtype=torch.float64)
    maps = F.interpolate(coarse, (side, side), mode="bilinear", align_corners=True)
    maps = maps + noise * torch.randn(maps.shape, generator=generator, dtype=torch.float64)
    return F.layer_norm(maps.flatten(2).mT[0], (dim,))


def soft_queries(side: int, seed: int = 0) -> Tensor:
    """Return smooth tokens divided by `D^(1/4)`, the scale of queries in SOFT's Gaussian kernel."""
    return smooth_tokens(side, seed=seed) * 32**-0.25


def pooled(q: Tensor, side: int, grid: int) -> Tensor:
    """Return averages of tokens `[side^2, D]` over a grid x grid of windows."""
    return F.adaptive_avg_pool2d(q.mT.unflatten(1, (side, side))[None], grid).flatten(2).mT[0]


def soft_matrix(q: Tensor, bottleneck: Tensor, **options) -> Tensor:
    """Return the matrix `[N, N]` of softmax-free attention with queries `[N, D]` and bottleneck tokens `[M, D]`."""
    unit = torch.eye(len(q), dtype=q.dtype)
    return soft_attention(q[None, None], bottleneck[None, None], unit[None, None], backend="eager", **options)[0, 0]


def count_flops(function: Callable[..., object], *args: object) -> int:
    """Return the FLOPs of a call."""
    with flop_counter() as counter:
        function(*args)
    return counter.get_total_flops()


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@claim(1, SOFT)
def gaussian_entries() -> Finding:
    """SOFT's matrix is symmetric, its entries lie in [0, 1], the diagonal is 1."""
    q = soft_queries(16)
    kernel, low_rank = self_gaussian_kernel(q), soft_matrix(q, pooled(q, 16, 7))
    exact = torch.allclose(kernel, kernel.mT, rtol=1e-12) and bool((kernel.diagonal() == 1).all()) and kernel.min() >= 0
    asymmetry, diagonal = float((low_rank - low_rank.mT).abs().max()), low_rank.diagonal()
    found = f"The kernel: {'yes' if exact else 'no'}. The computed form, through 49 bottleneck tokens: "
    found += f"symmetric to {asymmetry:.0e}, entries from {low_rank.min():.2f} to {low_rank.max():.2f}, "
    found += f"diagonal {diagonal.min():.2f} to {diagonal.max():.2f}."
    of_form = asymmetry < 1e-9 and low_rank.min() >= 0 and diagonal.min() > 0.99
    return Finding(verdict(exact and of_form, exact), found)


@claim(2, SOFT)
def semidefinite() -> Finding:
    """The matrix is positive semidefinite, and the Nystroem form keeps this."""
    q = soft_queries(16)
    bottleneck = pooled(q, 16, 7)
    forms = {
        "kernel": self_gaussian_kernel(q),
        "Newton": soft_matrix(q, bottleneck),
        "Cholesky": soft_matrix(q, bottleneck, inverse="cholesky"),
        "normalised": soft_matrix(q, bottleneck, **NORMALISED),
    }
    lowest = {}
    for name, matrix in forms.items():
        values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
        lowest[name] = float(values[0] / values[-1])
    return Finding(verdict(min(lowest.values()) > -1e-9), f"Least eigenvalue over the largest: {named(lowest, '.0e')}.")


@claim(5, SOFT)
def random_sampling() -> Finding:
    """Random sampling of bottleneck tokens is sensitive to their number.

    Compare errors of the low-rank form, without training.
    """
    errors = {(kind, grid): [] for kind in ("random", "pooled") for grid in (4, 8)}
    for seed, grid in product(range(10), (4, 8)):
        q = soft_queries(16, seed)
        chosen = q[torch.randperm(256, generator=torch.Generator().manual_seed(seed))[: grid**2]]
        for kind, tokens in (("random", chosen), ("pooled", pooled(q, 16, grid))):
            cross, inner = gaussian_kernel(q, tokens), self_gaussian_kernel(tokens)
            low_rank = cross @ eigh_inverse(inner, 1e-6) @ cross.mT
            errors[kind, grid].append(relative_error(low_rank, self_gaussian_kernel(q)))
    few, many = ({kind: mean(errors[kind, grid]) for kind in ("random", "pooled")} for grid in (4, 8))
    spread = max(stdev(errors["random", grid]) for grid in (4, 8))
    sensitive = few["random"] / many["random"] > 1.5 * few["pooled"] / many["pooled"]
    found = "Error of the low-rank form with 16 and 64 of 256 tokens: "
    found += f"random {few['random']:.2f} and {many['random']:.2f} (standard deviation over draws up to {spread:.3f}), "
    found += f"pooled {few['pooled']:.2f} and {many['pooled']:.2f}. "
    found += f"The number matters {'more for random ones' if sensitive else 'as much for both'}; no training."
    return Finding(verdict(sensitive), found)


@claim(8, SOFT)
def newton_converges() -> Finding:
    """Newton-Raphson converges to the Moore-Penrose inverse.

    Invert kernel matrices of 49 tokens, from distant to nearly equal ones, without ridge, in float64.
    """
    q = pooled(soft_queries(21), 21, 7)
    converged, failed, error = 0.0, math.inf, 0.0
    for scale in torch.logspace(1, -1.5, 60, dtype=torch.float64):
        a = self_gaussian_kernel(scale * q)
        values = torch.linalg.eigvalsh(a)
        condition = float(values[-1] / values[0])
        inverse = newton_inverse(a, 20, 0.0)
        residual = float(torch.linalg.matrix_norm(torch.eye(49, dtype=a.dtype) - a @ inverse, 2))
        if residual < 1e-3:
            converged, error = max(converged, condition), relative_error(inverse, torch.linalg.pinv(a))
        if residual > 0.5:
            failed = min(failed, condition)
    found = f"Twenty steps reach the pseudo-inverse up to condition number {converged:.0f} (error {error:.0e} there); "
    found += f"from {failed:.0f} on more than half of some direction is missing. The ridge of 0.01 as released bounds "
    found += "the condition number by 100 times the largest eigenvalue."
    return Finding("holds in part", found)


@claim(9, SOFT)
def inverses_in_training() -> Finding:
    """SVD is unfit for training on accelerators, Newton's iteration is not.

    Time forward and backward on a CPU, and take gradients at equal singular values, as of distant tokens.
    """
    far, near = 100 * torch.eye(49, 64)[None], torch.randn(64, 49, 64, generator=torch.Generator().manual_seed(0))

    def by_svd(a: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(a)
        return vh.mT @ (u / (s + 0.01)[..., None, :]).mT

    def by_cholesky(a: Tensor) -> Tensor:
        return torch.cholesky_inverse(torch.linalg.cholesky(a + 0.01 * torch.eye(49)))

    def gradient(inverse, tokens: Tensor) -> Tensor:
        tokens = tokens.clone().requires_grad_()
        weight = torch.arange(49 * 49.0).view(49, 49).sin()
        (inverse(self_gaussian_kernel(tokens)) * weight).sum().backward()
        return tokens.grad

    forms = {"SVD": by_svd, "Newton": newton_inverse, "Cholesky": by_cholesky}
    finite = {name: bool(gradient(form, far).isfinite().all()) for name, form in forms.items()}
    times = seconds({name: lambda form=form: gradient(form, 0.4 * near) for name, form in forms.items()})
    milliseconds = {name: 1e3 * value for name, value in times.items()}
    gradients = named({name: "finite" if ok else "not finite" for name, ok in finite.items()})
    found = f"64 matrices of 49 x 49, forward and backward on one thread: {named(milliseconds, '.0f', ' ms')}; "
    found += f"gradient at equal singular values: {gradients}. No accelerator was used."
    return Finding(verdict(False, not finite["SVD"] and finite["Newton"] and finite["Cholesky"]), found)


@claim(16, SOFT_NORM)
def spectra() -> Finding:
    """Normalising makes the spectrum, and the transfer to detection, better behaved."""
    plain, normal = [], []
    for side in (14, 28):
        q = soft_queries(side)
        for largest, options in ((plain, {}), (normal, NORMALISED)):
            largest.append(float(torch.linalg.matrix_norm(soft_matrix(q, pooled(q, side, 7), **options), 2)))
    found = "Largest singular value at N = 196 and 784, 49 bottleneck tokens: "
    found += f"plain {plain[0]:.1f} and {plain[1]:.1f}, normalised {normal[0]:.1f} and {normal[1]:.1f}. "
    found += "Smaller, but still proportional to N. The transfer needs COCO."
    return Finding(verdict(False, normal[1] < plain[1]), found)


@claim(17, LINEAR)
def associativity() -> Finding:
    """Without softmax, (Q K^T) V = Q (K^T V): exact, linear in N."""
    error, counts = 0.0, []
    for tokens in (512, 1024, 2048):
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 1, 2, tokens, 32, dtype=torch.float64)
        q, k = elu_features(q), elu_features(k)
        weights = q @ k.mT
        error = max(error, relative_error(linear_attention(q, k, v), weights / weights.sum(-1, keepdim=True) @ v))
        counts.append(count_flops(linear_attention, q, k, v))
    slope = log_log_slope((512, 1024, 2048), counts)
    found = f"Relative difference {error:.0e} in float64; FLOPs grow as N^{slope:.2f}."
    return Finding(verdict(error < 1e-12 and slope < 1.05), found)


@claim(18, LINEAR)
def causal_forms() -> Finding:
    """With elu + 1 the causal form is an RNN: recurrence, running sums and pairs agree; running sums are the fastest
    and take the most memory.
    """
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 1024, 32, dtype=torch.float64)
    q, k = elu_features(q), elu_features(k)

    def recurrence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, outputs = linear_attention_init(k[:, :, 0], v[:, :, 0]), []
        for i in range(q.shape[2]):
            x, state = linear_attention_step(state, q[:, :, i], k[:, :, i], v[:, :, i])
            outputs.append(x)
        return torch.stack(outputs, 2)

    def sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kv = (k[..., :, None] * v[..., None, :]).cumsum(2)
        return (q[..., None, :] @ kv)[..., 0, :] / (q * k.cumsum(2)).sum(-1, keepdim=True)

    def pairs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT).tril()
        return weights / weights.sum(-1, keepdim=True) @ v

    forms = {"recurrence": recurrence, "running sums": sums, "pairs": pairs, "chunks": causal_linear_attention}
    exact = pairs(q, k, v)
    error = max(relative_error(form(q, k, v), exact) for form in forms.values())
    single = q.float(), k.float(), v.float()
    times = seconds({name: lambda form=form: form(*single) for name, form in forms.items()}, rounds=3)
    memory = {name: peak_memory(lambda form=form: form(*single), "cpu") / 2**20 for name, form in forms.items()}
    found = f"They agree to {error:.0e}. At N = 1024, four heads of 32: "
    found += ", ".join(f"{name} {1e3 * times[name]:.0f} ms and {memory[name]:.1f} MB" for name in forms)
    found += "; chunks are pairs within 64 tokens and running sums between."
    extremes = min(times, key=times.__getitem__), max(memory, key=memory.__getitem__)
    exact = error < 1e-10
    return Finding(verdict(exact and extremes == ("running sums", "running sums"), exact), found)


@claim(19, "Performer, arXiv 2009.14794")
def random_features() -> Finding:
    """Random features approximate softmax attention without bias; the error falls with their number; orthogonal ones
    err less.
    """
    torch.manual_seed(0)
    D, draws = 16, 2000
    q, k = F.normalize(torch.randn(2, 24, D), dim=-1) * 1.2
    exact = (q @ k.mT).exp()

    def estimates(features: int, orthogonal: bool) -> Tensor:
        results = []
        for _ in range(draws):
            w = orthogonal_random_features(features, D) if orthogonal else torch.randn(features, D)
            phi_q, phi_k = ((x @ w.mT - x.square().sum(-1, keepdim=True) / 2).exp() for x in (q, k))
            results.append(phi_q @ phi_k.mT / features)
        return torch.stack(results) / exact

    by_number = {features: estimates(features, True) for features in (16, 64, 256)}
    errors = {features: float((ratio - 1).square().mean().sqrt()) for features, ratio in by_number.items()}
    independent = float((estimates(16, False) - 1).square().mean().sqrt())
    ratio = by_number[64]
    # Entries of one draw are not independent: the mean over them has the deviation of draws.
    per_draw = ratio.mean((1, 2))
    bias, deviation = float(per_draw.mean() - 1), float(per_draw.std() / draws**0.5)
    slope = log_log_slope(list(errors), list(errors.values()))
    found = f"Mean of estimate over exact value, less one: {bias:.4f} with a standard error of {deviation:.4f}. "
    found += f"The error falls as M^{slope:.2f}. With 16 features in 16 channels it is {errors[16]:.3f} for "
    found += f"orthogonal and {independent:.3f} for independent ones. "
    found += "The quotient of two estimates, which attention is, has a bias."
    holds = abs(bias) < 4 * deviation and -0.6 < slope < -0.4 and errors[16] < independent
    return Finding(verdict(holds), found)


@claim(22, "Linformer, arXiv 2006.04768")
def projected_tokens() -> Finding:
    """Projecting keys and values to k tokens keeps the result, with k independent of N (Johnson-Lindenstrauss).

    Use random projections, as the proof does. Learned projections may do better.
    """
    products, used = [], []
    for side in (16, 32, 64):
        torch.manual_seed(0)
        x = smooth_tokens(side, seed=1)
        q, k, v = (x @ torch.randn(32, 32, dtype=x.dtype) * 32**-0.5 for _ in range(3))
        exact = torch.softmax(q @ k.mT * 32**-0.5, -1) @ v
        e, f = (torch.randn(128, side**2, dtype=x.dtype) * 128**-0.5 for _ in range(2))
        product = torch.softmax(q @ k.mT * 32**-0.5, -1) @ f.mT @ (f @ v)
        e, f = (x * (128 / side**2) ** 0.5 for x in (e, f))
        products.append(relative_error(product, exact))
        used.append(relative_error(torch.softmax(q @ (e @ k).mT * 32**-0.5, -1) @ (f @ v), exact))
    shown = [", ".join(f"{error:.2f}" for error in errors) for errors in (products, used)]
    found = f"Relative error with k = 128 at N = 256, 1024, 4096: of the product P F^T F V {shown[0]}; "
    found += f"of the form in use, softmax(Q (E K)^T) F V, {shown[1]}. "
    found += "The first hardly depends on N; projections of the second must be learned."
    flat, close = max(products) < 2 * min(products), max(used) < 0.5
    return Finding(verdict(flat and close, flat), found)


@claim(24, "Reformer, arXiv 2001.04451")
def hashing() -> Finding:
    """Near vectors share an LSH bucket; more rounds of hashing miss less."""
    torch.manual_seed(0)
    x = F.normalize(torch.randn(2000, 32), dim=-1)
    other = F.normalize(torch.randn(2000, 32), dim=-1)
    other = F.normalize(other - (other * x).sum(-1, keepdim=True) * x, dim=-1)
    rotations, rates, missed = torch.randn(8, 32, 32), {}, []
    for cosine in (0.95, 0.7, 0.0):
        near = cosine * x + math.sqrt(1 - cosine**2) * other
        pairs = [angular_buckets(y[None, None], rotations, 4)[0, 0] for y in (x, near)]
        same = pairs[0] == pairs[1]
        rates[cosine] = float(same.float().mean())
        if cosine == 0.95:
            missed = [float(1 - same[:rounds].any(0).float().mean()) for rounds in (1, 2, 4, 8)]
    found = "Share of pairs in one of 16 buckets: "
    found += ", ".join(f"{rate:.2f} at cosine {cosine}" for cosine, rate in rates.items())
    found += "; missed at 0.95 by 1, 2, 4, 8 rounds: " + ", ".join(f"{rate:.3f}" for rate in missed) + "."
    falls = all(a > b for a, b in pairwise(missed))
    return Finding(verdict(rates[0.95] > rates[0.7] > rates[0.0] and falls), found)


@claim(29, "Transformer-VQ, arXiv 2309.16354")
def quantised_keys() -> Finding:
    """Quantising the keys makes softmax attention linear in N, exactly."""
    torch.manual_seed(0)
    codebook, error, lost, counts = torch.randn(2, 16, 32, dtype=torch.float64), 0.0, 0.0, []
    for side in (16, 32):
        q, k, v = torch.randn(3, 1, 2, side**2, 32, dtype=torch.float64)
        layout = Layout((side, side))
        found = vq_attention(q, k, v, codebook[None], layout)
        replaced = nearest_codes(k, codebook, layout) @ codebook
        error = max(error, relative_error(found, F.scaled_dot_product_attention(q, replaced, v)))
        lost = max(lost, relative_error(found, F.scaled_dot_product_attention(q, k, v)))
        counts.append(count_flops(vq_attention, q, k, v, codebook[None], layout))
    slope = log_log_slope((256, 1024), counts)
    text = f"Equal to dense attention to the quantised keys up to {error:.0e}, FLOPs as N^{slope:.2f}. Against the "
    text += f"keys as they were, random ones and 16 codes, the error is {lost:.2f}: the codes must be learned."
    return Finding(verdict(error < 1e-12 and slope < 1.05), text)


@claim(31, "arXiv 1911.03584")
def convolution() -> Finding:
    """Attention with relative positions can express a convolution.

    Use nine heads with scores `-a |place - query - shift|^2`, one for each shift of a 3 x 3 kernel.
    """
    torch.manual_seed(0)
    side, C = 12, 8
    image, kernel = torch.randn(1, C, side, side, dtype=torch.float64), torch.randn(C, C, 3, 3, dtype=torch.float64)
    exact = F.conv2d(image, kernel, padding=1)[0, :, 1:-1, 1:-1]
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    tokens, errors = image[0].flatten(1).mT, {}
    for sharpness in (1, 4, 16):
        total = torch.zeros(side**2, C, dtype=torch.float64)
        for y, x in product(range(3), range(3)):
            shift = torch.tensor([y - 1.0, x - 1.0], dtype=torch.float64)
            distance = (places[None] - places[:, None] - shift).square().sum(-1)
            total += torch.softmax(-sharpness * distance, -1) @ tokens @ kernel[:, :, y, x].mT
        errors[sharpness] = relative_error(total.mT.unflatten(1, (side, side))[:, 1:-1, 1:-1], exact)
    found = "Relative error of nine heads against a 3 x 3 convolution, away from the border, at sharpness "
    found += named({f"{sharpness}:": error for sharpness, error in errors.items()}, ".0e")
    return Finding(verdict(errors[16] < 1e-6), f"{found}. At the border they differ.")


@claim(32, "arXiv 2411.07635")
def rank_of_linear() -> Finding:
    """Linear attention suffers from low rank; a rank-augmenting weight on keys mends it.

    The weight is `N softmax(mean query . key / sqrt(D))`, as in the paper.
    """
    torch.manual_seed(0)
    x = smooth_tokens(16)
    q, k, v = (x @ torch.randn(32, 32, dtype=x.dtype) * 32**-0.5 for _ in range(3))
    weight = 256 * torch.softmax(k @ q.mean(0) * 32**-0.5, 0)[:, None]
    q, phi = elu_features(q), elu_features(k)
    matrices = {"softmax": torch.softmax(q @ k.mT * 32**-0.5, -1)}
    matrices |= {"linear": q @ phi.mT, "linear, weighted": q @ (weight * phi).mT}
    ranks = {name: int(torch.linalg.matrix_rank(matrix, rtol=1e-10)) for name, matrix in matrices.items()}
    of_matrix = {name: float(effective_rank(a / a.sum(-1, keepdim=True))) for name, a in matrices.items()}
    buffers = [float(effective_rank(keys.mT @ v)) for keys in (phi, weight * phi)]
    found = f"Rank of the 256 x 256 matrix: softmax {ranks['softmax']}, linear {ranks['linear']}, with the weight "
    found += f"{ranks['linear, weighted']}; effective ranks {of_matrix['softmax']:.1f}, {of_matrix['linear']:.1f}, "
    found += f"{of_matrix['linear, weighted']:.1f}; of K^T V {buffers[0]:.1f} and {buffers[1]:.1f} of 32. The bound D "
    found += "holds for any weight; trained weights were not tried."
    mends = of_matrix["linear, weighted"] > 1.2 * of_matrix["linear"] or buffers[1] > 1.2 * buffers[0]
    low = ranks["linear"] <= 32 < ranks["softmax"]
    return Finding(verdict(low and mends, low), found)


@claim(33, "MALA, ICCV 2025")
def magnitude() -> Finding:
    """Linear attention neglects the query's magnitude; scaling mends it.

    The weights are `(1 + 1/s) q k - s / N`, where s is the sum of `q k` over the keys, as in the paper.
    """
    torch.manual_seed(0)
    q, k = torch.randn(2, 128, 32, dtype=torch.float64)

    def weights(kind: str, q: Tensor) -> Tensor:
        if kind == "softmax":
            return torch.softmax(q @ k.mT * 32**-0.5, -1)
        phi = elu_features if kind == "elu + 1" else relu_features
        products = phi(q) @ phi(k).mT
        total = products.sum(-1, keepdim=True)
        return (1 + 1 / total) * products - total / 128 if kind == "scaled" else products / total

    kinds = ("softmax", "relu", "elu + 1", "scaled")
    change = {kind: float((weights(kind, 3 * q).std(-1) / weights(kind, q).std(-1)).mean()) for kind in kinds}
    sums = float((weights("scaled", q).sum(-1) - 1).abs().max())
    found = "Spread of the weights of a query three times as long, relative to before: "
    found += f"{named(change, '.2f')}. The scaled rows still sum to one ({sums:.0e})."
    return Finding(verdict(abs(change["relu"] - 1) < 1e-6 and change["scaled"] > 2), found)


@claim(34, "arXiv 2412.06590")
def injectivity() -> Finding:
    """Injectivity and local bias separate softmax from linear attention."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 128, 32, dtype=torch.float64)

    def products(q: Tensor) -> Tensor:
        return relu_features(q) @ relu_features(k).mT

    rows = {
        "softmax": lambda q: torch.softmax(q @ k.mT * 32**-0.5, -1),
        "linear": lambda q: products(q) / products(q).sum(-1, keepdim=True),
        "subtracted": lambda q: products(q) - products(q).mean(-1, keepdim=True) + 1 / 128,
    }
    # The largest L1 distance between the weights of a query and of its double, over all queries.
    distances = {name: float((of(2 * q) - of(q)).abs().sum(-1).max()) for name, of in rows.items()}
    softmax, linear, subtracted = distances.values()
    found = f"A query and its double: distance of their rows {softmax:.2f} for softmax, {linear:.0e} for linear "
    found += f"attention with ReLU, {subtracted:.0f} where the mean is subtracted instead of dividing. "
    found += "Local bias needs a model trained on images."
    return Finding(verdict(False, linear < 1e-9 < softmax), found)
