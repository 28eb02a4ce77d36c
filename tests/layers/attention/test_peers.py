"""Against other packages on the same weights; tests/data/peers/README.md tells how their numbers were made."""

import json
from pathlib import Path

import pytest
import torch
from attention_cases import decode
from safetensors import safe_open
from torch import Tensor

from soft_vit.layers import ATTENTIONS
from soft_vit.ops.linear import causal_linear_attention

FOLDER = Path(__file__).parents[2] / "data" / "peers"
# A function without weights.
CAUSAL_LINEAR = FOLDER / "causal_linear_fla.safetensors"
FILES = sorted(set(FOLDER.glob("*.safetensors")) - {CAUSAL_LINEAR})

# Rounding of float64 products of some hundred terms, with room for another order of operations. Landmarks' iterative
# pseudo-inverse multiplies it by up to the condition number of its matrix. The hashing peer adds 1e-9 to the rounds
# that found a key and takes the logarithm in fp32, where log 2 is wrong by 2e-9.
BUDGET = {"nystrom_transformers": 1e-9, "nystrom_conv_transformers": 1e-9, "reformer_lsh_reformer": 3e-9}


def read(path: Path) -> tuple[dict, dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        return json.loads(file.metadata()["facts"]), {name: file.get_tensor(name) for name in names}


def test_every_comparison_is_there():
    assert len(FILES) == 21


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_output_and_gradient_of_the_peer(path):
    facts, tensors = read(path)
    x, feat_size = tensors.pop("x").requires_grad_(), tuple(facts["feat_size"])
    expected, gradient = tensors.pop("y"), tensors.pop("grad", None)
    attn = ATTENTIONS[facts["kind"]](x.shape[-1], 3, feat_size=feat_size, **facts["options"]).double()
    attn.load_state_dict({name.removeprefix("weights."): value for name, value in tensors.items()})
    y = attn(x, feat_size)
    budget = BUDGET.get(path.stem, 1e-12)
    assert (y - expected).norm() <= budget * expected.norm()
    if gradient is not None:
        (grad,) = torch.autograd.grad(y.square().sum(), x)
        assert (grad - gradient).norm() <= 10 * budget * gradient.norm()


FORMS = [lambda *qkv: causal_linear_attention(*qkv, chunk_size=7), decode]


@pytest.mark.parametrize("form", FORMS, ids=["parallel", "recurrent"])
def test_causal_linear_attention_of_the_peer(form):
    _, tensors = read(CAUSAL_LINEAR)
    leaves = [tensors[name].requires_grad_() for name in "qkv"]
    q, k, _ = leaves
    # What the peer adds to every normaliser, next to the smallest.
    budget = 1e-10 / (q * k.cumsum(2)).sum(-1).min().item()
    y = form(*leaves)
    assert (y - tensors["y"]).norm() <= budget * tensors["y"].norm()
    for name, grad in zip("qkv", torch.autograd.grad(y.square().sum(), leaves), strict=True):
        gradient = tensors[f"grad_{name}"]
        assert (grad - gradient).norm() <= 10 * budget * gradient.norm(), name
