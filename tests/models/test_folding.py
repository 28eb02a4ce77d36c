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


@pytest.mark.parametrize("options", [{"num_classes": 7}, {"features_only": True}], ids=["classifier", "features"])
def test_the_same_function_without_batch_norm(options):
    model = with_statistics(timm.create_model("soft_pico", **options)).double().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = fold_batch_norm(model.train())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not folded.training
    assert model.training
    x = torch.randn(2, 3, 65, 97, dtype=torch.float64)
    torch.testing.assert_close(folded(x), model.eval()(x), rtol=1e-9, atol=1e-10)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("convert", [nn.SyncBatchNorm.convert_sync_batchnorm, freeze_batch_norm_2d])
def test_batch_norms_of_other_classes(convert):
    model = convert(with_statistics(timm.create_model("soft_pico", num_classes=7)).eval()).double()
    folded = fold_batch_norm(model)
    assert not any("BatchNorm" in type(module).__name__ for module in folded.modules())
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "options", "left"), [("soft_pico", {}, 0), (*SMALL["ravlt"], 1), (*SMALL["h_vit3"], 1)]
)
def test_folded_twice_is_folded_once(name, options, left):
    """In families with layers of their own too; a norm that follows no convolution in a sequence is left."""
    model = with_statistics(timm.create_model(name, **options)).double().eval()
    folded = fold_batch_norm(model)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) == left
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    torch.testing.assert_close(folded(x), model(x), rtol=1e-9, atol=1e-10)
    assert torch.equal(fold_batch_norm(folded)(x), folded(x))


def test_nothing_to_fold():
    with pytest.raises(ValueError, match="Linear"):
        fold_batch_norm(nn.Linear(2, 2))
