"""Record outputs of other packages on our weights, for tests/layers/attention/test_peers.py.

Run in an environment that has this repository installed, with transformers==5.23.0 and scikit-learn==1.9.1, and with
these, without their requirements:
    performer-pytorch==1.1.4 linformer==0.2.3 flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2
    reformer-pytorch==1.4.4 local-attention==1.11.2 axial-positional-embedding==0.3.12 product-key-memory==0.3.0
    FLASH-pytorch==0.1.9 rotary-embedding-torch==0.9.1 CoLT5-attention==0.11.2 hyper-connections==0.4.11
Each file holds the version of its package.
"""

import json
import math
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from soft_vit.layers import ATTENTIONS, Attention

HERE = Path(__file__).parent
DIM, NUM_HEADS = 12, 3
HEAD_DIM = DIM // NUM_HEADS
GRID = (5, 7)
SMALL_GRID = (4, 6)


def write(
    name: str,
    kind: str,
    options: dict,
    package: str,
    peer_of: Callable[[Attention], Callable[[Tensor], Tensor]],
    *,
    feat_size: tuple[int, int] = GRID,
    sr_ratio: int = 1,
    spread: float = 2.0,
) -> None:
    """Run the peer on our weights, and keep input, weights, output and the gradient of the input.

    peer_of: turns our attention into the function of its peer, which its docstring names. spread: standard deviation of
    the product of a weight and the input.
    """
    torch.manual_seed(0)
    args = dict(options, sr_ratio=sr_ratio)
    attn = ATTENTIONS[kind](DIM, NUM_HEADS, feat_size=feat_size, **args).double()
    for parameter in attn.parameters():
        nn.init.normal_(parameter, std=0.5 if parameter.ndim < 2 else spread * parameter[0].numel() ** -0.5)
    x = torch.randn(1, feat_size[0] * feat_size[1], DIM, dtype=torch.float64, requires_grad=True)
    y = peer_of(attn)(x)
    tensors = {"x": x.detach(), "y": y.detach(), **{f"weights.{k}": v for k, v in attn.state_dict().items()}}
    if y.requires_grad:
        (tensors["grad"],) = torch.autograd.grad(y.square().sum(), x)
    save(name, tensors, package, peer_of.__doc__, kind=kind, options=args, feat_size=feat_size)


def save(name: str, tensors: dict[str, Tensor], package: str, part: str, **facts) -> None:
    facts |= {"peer": f"{package} {version(package)}", "part": part}
    metadata = {"facts": json.dumps(facts)}
    save_file({k: v.contiguous() for k, v in tensors.items()}, HERE / f"{name}.safetensors", metadata)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def qkv(attn: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(heads(part) for part in attn.qkv(x).chunk(3, dim=-1))


def split(layer: nn.Linear, *names: str) -> dict[str, Tensor]:
    """Weight and bias of a layer that computes several at once, under the names of each."""
    return {
        f"{name}.{which}": part
        for which, whole in layer.named_parameters()
        for name, part in zip(names, whole.chunk(len(names)), strict=True)
    }


def bert_names(attn: Attention) -> dict[str, Tensor]:
    """Our projections under the names of every BERT-like layer."""
    return split(attn.qkv, "query", "key", "value")


def timm_softmax(attn: Attention) -> Callable:
    """layers.Attention"""
    from timm.layers import Attention as Peer

    peer = Peer(DIM, NUM_HEADS, qkv_bias=True).double()
    peer.fused_attn = False
    weights = {f"qkv.{name}": torch.cat([q, getattr(attn.kv, name)]) for name, q in attn.q.named_parameters()}
    peer.load_state_dict(weights | split(attn.proj, "proj"))
    return peer


def timm_pvt(attn: Attention) -> Callable:
    """models.pvt_v2.Attention"""
    from timm.models.pvt_v2 import Attention as Peer

    ratio = 1 if attn.linear else attn.sr.stride[0]
    peer = Peer(DIM, NUM_HEADS, sr_ratio=ratio, linear_attn=attn.linear, qkv_bias=True).double()
    peer.fused_attn = False
    peer.load_state_dict(attn.state_dict())
    return lambda x: peer(x, GRID)


def linformer(attn: Attention) -> Callable:
    """LinformerSelfAttention"""
    from linformer.linformer import LinformerSelfAttention as Peer

    projection = attn.projection
    peer = Peer(DIM, GRID[0] * GRID[1], k=projection.weight_k.shape[1], heads=NUM_HEADS).double()
    projections = {f"proj_{name}": getattr(projection, f"weight_{name}")[0].flatten(1).T for name in "kv"}
    weights = split(attn.qkv, "to_q", "to_k", "to_v") | split(attn.proj, "to_out")
    peer.load_state_dict(weights | projections)
    return peer


def performer(attn: Attention) -> Callable:
    """softmax_kernel, generalized_kernel, linear_attention"""
    from performer_pytorch import performer_pytorch as peer

    def run(x: Tensor) -> Tensor:
        q, k, v = qkv(attn, x)
        if attn.kernel == "relu":
            q, k = (peer.generalized_kernel(t, projection_matrix=attn.projection) for t in (q, k))
        else:
            # Its default keeps 1e-4 more in every feature, for half precision.
            q = peer.softmax_kernel(q, projection_matrix=attn.projection, is_query=True, eps=0.0)
            k = peer.softmax_kernel(k, projection_matrix=attn.projection, is_query=False, eps=0.0)
        return attn.proj(joined(peer.linear_attention(q, k, v)))

    return run


def performer_linear(attn: Attention) -> Callable:
    """linear_attention"""
    from performer_pytorch.performer_pytorch import linear_attention

    def run(x: Tensor) -> Tensor:
        q, k, v = qkv(attn, x)
        return attn.proj(joined(linear_attention(nn.functional.elu(q) + 1, nn.functional.elu(k) + 1, v)))

    return run


def transformers_nystrom(attn: Attention) -> Callable:
    """NystromformerSelfAttention"""
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention as Peer

    config = NystromformerConfig(
        hidden_size=DIM,
        num_attention_heads=NUM_HEADS,
        num_landmarks=8,
        segment_means_seq_len=32,
        conv_kernel_size=1 if attn.local is None else attn.local.kernel_size[0],
        attention_probs_dropout_prob=0.0,
    )
    peer = Peer(config).double()
    if attn.local is None:
        peer.conv_kernel_size = None
        del peer.conv
    # The start that takes each matrix by itself; the option that should choose it is read under another name.
    peer.init_option = "exact"
    parts = bert_names(attn)
    if attn.local is not None:
        # On a map of one column only the middle one of the kernel meets tokens.
        parts["conv.weight"] = attn.local.weight[..., attn.local.kernel_size[1] // 2, None]
    peer.load_state_dict(parts)
    return lambda x: attn.proj(peer(x)[0])


def transformers_longformer(attn: Attention) -> Callable:
    """LongformerSelfAttention"""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention as Peer

    from soft_vit.layers.attention.longformer import global_positions

    window = attn.kernel_size - 1
    config = LongformerConfig(
        hidden_size=DIM, num_attention_heads=NUM_HEADS, attention_window=[window], attention_probs_dropout_prob=0.0
    )
    peer = Peer(config, 0).double()
    of_globals = split(attn.q_global, "query_global") | split(attn.kv_global, "key_global", "value_global")
    peer.load_state_dict(bert_names(attn) | of_globals)

    def run(x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.zeros(x.shape[0], length, dtype=x.dtype)
        mask[:, global_positions((1, length), attn.global_grid, x.device)] = 10000.0
        # It asks for fp32, whatever its input is.
        with patch("torch.nn.functional.softmax", lambda scores, dim, dtype: torch.softmax(scores, dim)):
            out = peer(
                x,
                attention_mask=mask,
                is_index_masked=mask < 0,
                is_index_global_attn=mask > 0,
                is_global_attn=True,
            )[0]
        return attn.proj(out)

    return run


def transformers_bigbird(attn: Attention) -> Callable:
    """BigBirdBlockSparseAttention"""
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention as Peer
    from transformers.models.big_bird.modeling_big_bird import BigBirdModel

    from soft_vit.layers.attention.bigbird import random_blocks

    config = BigBirdConfig(
        hidden_size=DIM,
        num_attention_heads=NUM_HEADS,
        block_size=attn.block_size,
        num_random_blocks=attn.num_random,
        use_bias=True,
    )
    peer = Peer(config).double()
    peer.load_state_dict(bert_names(attn))

    def run(x: Tensor) -> Tensor:
        tokens = torch.arange(x.shape[1]).unflatten(0, (-1, attn.block_size))
        num_blocks = tokens.shape[0]
        index, exists = random_blocks(num_blocks, NUM_HEADS, attn.num_random, x.device)
        assert exists[:, 2:].all()
        # Its global blocks are the first and the last, ours the first two, so our second block goes behind the others.
        # Outside of training it draws no random blocks; it gets ours, in its numbers.
        peer._bigbird_block_rand_mask_with_head = lambda **_: (index[:, 2:] - 1).numpy()
        order = tokens[[0, *range(2, num_blocks), 1]].flatten()
        everything = torch.ones(x.shape[:2], dtype=x.dtype)
        blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(everything, attn.block_size)
        out = peer(x[:, order], band, rows, columns, blocked, blocked)[0]
        return attn.proj(out[:, order.argsort()])

    return run


def reformer_lsh(attn: Attention) -> Callable:
    """LSHAttention"""
    from reformer_pytorch.reformer_pytorch import LSHAttention

    class Peer(LSHAttention):
        def hash_vectors(self, n_buckets: int, vecs: Tensor, **kwargs) -> Tensor:
            # Two buckets to a chunk, as in the paper, where it has one.
            return super().hash_vectors(2 * n_buckets, vecs, **kwargs)

    rounds = attn.rotations.shape[0]
    # The two switches make it the paper's formula: own bucket only, and a key that several rounds find counts once.
    peer = Peer(
        bucket_size=attn.chunk_size, n_hashes=rounds, attend_across_buckets=False, allow_duplicate_attention=False
    )

    def run(x: Tensor) -> Tensor:
        qk, v = heads(attn.qk(x)), heads(attn.v(x))
        columns = x.shape[1] // attn.chunk_size
        rotations = attn.rotations[..., :columns].transpose(0, 1)[None]
        with patch("torch.randn", return_value=rotations):
            # It divides the scores by sqrt(d) although its keys have length one; the authors' code has no such factor.
            out = peer(math.sqrt(HEAD_DIM) * qk.flatten(0, 1), v.flatten(0, 1))[0]
        return attn.proj(joined(out.unflatten(0, qk.shape[:2])))

    return run


def transformers_reformer(attn: Attention) -> Callable:
    """LSHSelfAttention"""
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    class Peer(LSHSelfAttention):
        def _len_norm(self, x: Tensor) -> Tensor:
            # Without the 1e-6 that it adds to the mean square.
            return super()._len_norm(x, epsilon=0.0)

    config = ReformerConfig(
        hidden_size=DIM,
        num_attention_heads=NUM_HEADS,
        attention_head_size=HEAD_DIM,
        attn_layers=["lsh"],
        # All tokens in one chunk, where it has no hashes.
        lsh_attn_chunk_length=attn.chunk_size,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=False,
    )
    peer = Peer(config).double()
    peer.load_state_dict(split(attn.qk, "query_key") | split(attn.v, "value"))
    return lambda x: attn.proj(peer(x).hidden_states)


def flash_weights(attn: Attention, tokens: int, order: Sequence[int]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Weights of both forms by the names of the peer, and the scale and offset of queries and keys in its order.

    It divides by N before the square, ours by sqrt(S) before and by N behind: a factor of the queries.
    """
    parts = split(attn.z, "to_qk.0")
    for name, uv in attn.uv.named_parameters():
        parts[f"to_hidden.0.{name}"] = torch.cat(uv.chunk(2)[::-1])
    factor = torch.ones(len(order), 1, dtype=torch.float64)
    factor[0] = math.sqrt(tokens / attn.z.out_features)
    return parts, *((values * factor)[order] for values in (attn.scale, attn.offset))


FLASH_OPTIONS = {"dim": DIM, "expansion_factor": 2.0, "norm_klass": nn.Identity}


def flash_gau(attn: Attention) -> Callable:
    """GAU"""
    from flash_pytorch.flash_pytorch import GAU as Peer

    peer = Peer(query_key_dim=attn.z.out_features, add_residual=False, **FLASH_OPTIONS).double()
    # It always builds a T5 bias, which ours lacks.
    peer.rel_pos_bias = None
    parts, scale, offset = flash_weights(attn, GRID[0] * GRID[1], [0, 1])
    parts |= {"offsetscale.gamma": scale, "offsetscale.beta": offset}
    peer.load_state_dict(parts | split(attn.proj, "to_out.0"))
    return peer


def flash_linear(attn: Attention) -> Callable:
    """FLASH"""
    from flash_pytorch import FLASH as Peer

    chunk = attn.chunk_size
    peer = Peer(query_key_dim=attn.z.out_features, group_size=chunk, **FLASH_OPTIONS).double()
    # Its order is q, q of the linear part, k, k of the linear part.
    parts, scale, offset = flash_weights(attn, chunk, [0, 2, 1, 3])
    parts |= {"qk_offset_scale.gamma": scale, "qk_offset_scale.beta": offset}
    # Ours lacks a bias of positions.
    parts["rel_pos_bias.relative_attention_bias.weight"] = torch.zeros(32, 1)
    peer.load_state_dict(parts | split(attn.proj, "to_out"))
    return lambda x: peer(x) - x


def local_window(attn: Attention) -> Callable:
    """LocalAttention"""
    from local_attention import LocalAttention as Peer

    peer = Peer(window_size=attn.kernel_size // 2, exact_windowsize=True, use_rotary_pos_emb=False)
    return lambda x: attn.proj(joined(peer(*qkv(attn, x))))


def sklearn_nystroem(attn: Attention) -> Callable:
    """kernel_approximation.Nystroem"""
    from sklearn.kernel_approximation import Nystroem

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            q, v = heads(attn.q(x)) * HEAD_DIM**-0.25, heads(attn.v(x))
            count = math.prod(SMALL_GRID) // attn.sr_ratio**2
            peer = Nystroem(kernel="rbf", gamma=0.5, n_components=count, random_state=0)
            # Its features have the products K1 A^+ K1^T.
            features = np.stack([[peer.fit(h[:count]).transform(h) for h in image] for image in q.numpy()])
            features = torch.from_numpy(features)
            return attn.proj(joined(features @ (features.mT @ v)))

    return run


def sklearn_gaussian(attn: Attention) -> Callable:
    """metrics.pairwise.rbf_kernel"""
    from sklearn.metrics.pairwise import rbf_kernel

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            q, v = heads(attn.q(x)), heads(attn.v(x))
            kernel = np.stack([[rbf_kernel(h, gamma=0.5 / HEAD_DIM**0.5) for h in image] for image in q.numpy()])
            return attn.proj(joined(torch.from_numpy(kernel) @ v))

    return run


def flex_masked(allowed: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], columns: int) -> Callable:
    """Attention of torch by a rule on the rows and columns of query and key, on a map of that many columns."""
    from torch.nn.attention.flex_attention import create_mask

    def peer_of(attn: Attention) -> Callable:
        """nn.attention.flex_attention.create_mask"""

        def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return allowed(i // columns, i % columns, j // columns, j % columns)

        def run(x: Tensor) -> Tensor:
            mask = create_mask(rule, None, None, x.shape[1], x.shape[1], device="cpu")
            return attn.proj(joined(nn.functional.scaled_dot_product_attention(*qkv(attn, x), attn_mask=mask)))

        return run

    return peer_of


def near(y: Tensor, x: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return ((y - v).abs() <= 1) & ((x - u).abs() <= 1)


def same_phase(y: Tensor, x: Tensor, v: Tensor, u: Tensor) -> Tensor:
    return ((y - v) % 2 == 0) & ((x - u) % 2 == 0)


def write_causal_linear() -> None:
    """Features, values, the causal result and its gradients; a function of ours, which has no weights."""
    from fla.ops.linear_attn.naive import naive_chunk_linear_attn

    torch.manual_seed(0)
    # The number of tokens is one chunk of the peer's.
    shapes = {"q": (1, 64, 1, 3), "k": (1, 64, 1, 3), "v": (1, 64, 1, 2)}
    inputs = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    inputs = {name: x if name == "v" else nn.functional.elu(x) + 1 for name, x in inputs.items()}
    leaves = [x.requires_grad_() for x in inputs.values()]
    y = naive_chunk_linear_attn(*leaves, scale=1.0, normalize=True)
    grads = torch.autograd.grad(y.square().sum(), leaves)
    tensors = {**inputs, "y": y, **{f"grad_{name}": grad for name, grad in zip(inputs, grads, strict=True)}}
    # It has the heads behind the tokens.
    tensors = {name: x.detach().transpose(1, 2) for name, x in tensors.items()}
    part = "ops.linear_attn.naive.naive_chunk_linear_attn"
    save("causal_linear_fla", tensors, "flash-linear-attention", part)


def main() -> None:
    row = {"feat_size": (1, 16)}
    write("softmax_timm", "softmax", {}, "timm", timm_softmax)
    write("spatial_reduction_timm", "spatial_reduction", {}, "timm", timm_pvt, sr_ratio=2)
    write("spatial_reduction_linear_timm", "spatial_reduction", {"linear": True}, "timm", timm_pvt)
    write("linformer_linformer", "linformer", {"proj_k": 6, "qkv_bias": False}, "linformer", linformer)
    for kernel in ("softmax", "relu"):
        write(f"performer_{kernel}_performer", "performer", {"kernel": kernel}, "performer-pytorch", performer)
    write("linear_performer", "linear", {}, "performer-pytorch", performer_linear)
    write_causal_linear()
    for name, kernel in (("nystrom_transformers", 0), ("nystrom_conv_transformers", 5)):
        options = {"landmarks": "segment", "max_landmarks": None, "local_kernel": kernel}
        write(name, "nystrom", options, "transformers", transformers_nystrom, feat_size=(32, 1), sr_ratio=4)
    options = {"kernel_size": 5, "global_grid": (1, 2)}
    write("longformer_transformers", "longformer", options, "transformers", transformers_longformer, feat_size=(1, 24))
    options = {"chunk_size": 35, "num_rounds": 1, "qkv_bias": False}
    write("reformer_transformers", "reformer", options, "transformers", transformers_reformer)
    options = {"chunk_size": 4, "num_rounds": 2}
    write("reformer_lsh_reformer", "reformer", options, "reformer-pytorch", reformer_lsh, **row)
    options = {"block_size": 2, "num_random": 2}
    write("bigbird_transformers", "bigbird", options, "transformers", transformers_bigbird, **row)
    write("gau_flash", "gau", {"form": "quadratic"}, "FLASH-pytorch", flash_gau)
    write("gau_linear_flash", "gau", {"form": "linear", "chunk_size": 4}, "FLASH-pytorch", flash_linear, **row)
    write("gaussian_sklearn", "gaussian", {}, "scikit-learn", sklearn_gaussian)
    # Enough steps for the exact inverse, as in the peer.
    options = {"sampling": "first", "newton_iters": 60, "ridge": 0.0, "local_kernel": 0}
    small = {"feat_size": SMALL_GRID, "sr_ratio": 2, "spread": 0.5}
    write("soft_sklearn", "soft", options, "scikit-learn", sklearn_nystroem, **small)
    write("local_local_attention", "local", {"kernel_size": 5}, "local-attention", local_window, **row)
    write("atrous_torch", "atrous", {"dilation": 2}, "torch", flex_masked(same_phase, GRID[1]))
    # Long enough for several tiles of ours; on a smaller map it calls the same function as the peer.
    write("local_torch", "local", {"kernel_size": 3}, "torch", flex_masked(near, 13), feat_size=(3, 13))
    union = flex_masked(lambda *at: near(*at) | same_phase(*at), 3)
    write("sparse_torch", "sparse", {"kernel_size": 3, "dilation": 2}, "torch", union, feat_size=(13, 3))


if __name__ == "__main__":
    main()
