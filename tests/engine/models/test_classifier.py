"""The switches of the classifier: what they change, and what they must not."""

import copy
from functools import partial

import pytest
import torch
from mmpretrain.structures import DataSample
from stored import saved_bytes

from soft_vit.engine import TimmProgressClassifier

LABELS = (3, 7)


def build(**kwargs) -> TimmProgressClassifier:
    torch.manual_seed(0)
    model = TimmProgressClassifier("soft_pico", num_classes=10, img_size=32, depths=[1, 2, 1, 1], **kwargs)
    # Rounding then hides nothing: a bias before BatchNorm has a gradient of nothing else in fp32.
    return model.double().train()


def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def step(model: TimmProgressClassifier) -> dict[str, torch.Tensor]:
    """The loss and the gradients of all parameters."""
    model.zero_grad()
    samples = [DataSample().set_gt_label(label) for label in LABELS]
    loss = model(images(), samples, mode="loss")["loss"]
    loss.backward()
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


SWITCHES = {"with_cp": True, "channels_last": True}
COMPILED = {"compile_model": {"backend": "eager", "fullgraph": True}}


@pytest.mark.parametrize("options", [SWITCHES, pytest.param(SWITCHES | COMPILED, marks=pytest.mark.slow)])
def test_switches_change_no_result_and_no_checkpoint(options):
    plain, switched = build(), build(**options)
    convolutions = [p for p in switched.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in convolutions)
    state = switched.state_dict()
    assert list(state) == list(plain.state_dict())
    plain.load_state_dict(state)
    # As an average of weights does.
    twin = copy.deepcopy(switched)
    expected = step(plain)
    for model in (switched, twin):
        # Other kernels add up in another order.
        torch.testing.assert_close(step(model), expected, rtol=1e-9, atol=1e-10)


def test_checkpointing_keeps_less():
    less, all_of_it = (saved_bytes(partial(build(with_cp=flag), images())) for flag in (True, False))
    assert less < all_of_it / 2


def test_soft_loss_needs_scores():
    """Ten images of ten classes, whose labels have the shape of scores after broadcasting."""
    model = build(loss={"type": "CrossEntropyLoss", "use_soft": True})
    x, labels = torch.randn(10, 3, 32, 32, dtype=torch.float64), torch.arange(10)
    samples = [DataSample().set_gt_label(label) for label in labels]
    with pytest.raises(ValueError, match="use_soft"):
        model(x, samples, mode="loss")
    scored = [DataSample().set_gt_score(score) for score in torch.eye(10).double()]
    expected = torch.nn.functional.cross_entropy(model(x), labels)
    torch.testing.assert_close(model(x, scored, mode="loss")["loss"], expected)
