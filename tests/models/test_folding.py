"""BatchNorm folded into the convolutions before it."""

import pytest
import timm
import torch
from models.zoo.families import SMALL
from timm.layers import freeze_batch_norm_2d
from torch import nn

import soft_vit  # noqa: F401 - registers the models
from soft_vit.models.folding import fold_batch_norm


def with_statistics(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.weight.data, module.bias.data):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.1)
    return model


@pytest.mark.parametrize(
    ("name", "options", "convert", "left"),
    [
        ("soft_pico", {}, nn.Module.train, 0),
        ("soft_pico", {"features_only": True}, nn.Module.eval, 0),
        ("soft_pico", {}, nn.SyncBatchNorm.convert_sync_batchnorm, 0),
        ("soft_pico", {}, freeze_batch_norm_2d, 0),
        # A norm that follows no convolution in a sequence is left.
        (*SMALL["ravlt"], nn.Module.train, 1),
        (*SMALL["h_vit3"], nn.Module.train, 1),
    ],
)
def test_the_same_function_without_batch_norm(name, options, convert, left):
    """The model stays as it was, and a folded one may be folded again."""
    model = convert(with_statistics(timm.create_model(name, **options)).double().eval())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training = model.training
    folded = fold_batch_norm(model)
    assert sum("BatchNorm" in type(module).__name__ for module in folded.modules()) == left
    assert (folded.training, model.training) == (False, training)
    x = torch.randn(2, 3, 65, 97, dtype=torch.float64)
    result = folded(x)
    torch.testing.assert_close(result, model.eval()(x), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(fold_batch_norm(folded)(x), result, rtol=0, atol=0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_nothing_to_fold():
    with pytest.raises(ValueError, match="Linear"):
        fold_batch_norm(nn.Linear(2, 2))
