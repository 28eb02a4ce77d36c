"""Against other packages on the same weights; tests/data/peers/make.py wrote the numbers down, in float64."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from soft_vit.layers import ATTENTIONS

FILES = sorted((Path(__file__).parents[2] / "data" / "peers").glob("*.safetensors"))

# Rounding of float64 products of some hundred terms, with room for another order of operations. The iterative
# pseudo-inverse multiplies it by up to the condition number of its matrix; the Longformer peer's softmax is in fp32.
BUDGET = {"nystrom": 1e-9, "longformer": 2**-23}


def test_every_comparison_is_there():
    assert len(FILES) == 16


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_output_and_gradient_of_the_peer(path):
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    x, feat_size = tensors.pop("x").requires_grad_(), tuple(facts["feat_size"])
    expected, gradient = tensors.pop("y"), tensors.pop("grad", None)
    attn = ATTENTIONS[facts["kind"]](x.shape[-1], 3, feat_size=feat_size, **facts["options"]).double()
    attn.load_state_dict({name.removeprefix("weights."): value for name, value in tensors.items()})
    y = attn(x, feat_size)
    budget = BUDGET.get(facts["kind"], 1e-12)
    assert (y - expected).norm() <= budget * expected.norm()
    if gradient is not None:
        (grad,) = torch.autograd.grad(y.square().sum(), x)
        assert (grad - gradient).norm() <= 10 * budget * gradient.norm()
