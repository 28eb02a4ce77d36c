"""Health of attentions: rank, row sums, accuracy without a layer."""

import pytest
import timm
import torch

from soft_vit.probe.attentions import attentions, switched_off
from soft_vit.probe.health import accuracy, effective_rank, health_table, measure_accuracies, measure_health


@pytest.mark.parametrize(("values", "rank"), [([1, 1, 1], 3), ([5, 0, 0], 1), ([0, 0, 0], 0), ([3, 1, 0], 4 / 3**0.75)])
def test_effective_rank(values, rank):
    left, right = (torch.linalg.qr(torch.randn(n, 3, dtype=torch.float64)).Q for n in (7, 5))
    matrix = left * torch.tensor(values, dtype=torch.float64) @ right.T
    assert effective_rank(matrix).item() == pytest.approx(rank, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "options"), [("soft_plus_pico", {"depths": (1, 1, 1, 1)}), ("linear_vit_tiny_patch16", {"depth": 2})]
)
def test_health_of_models(name, options):
    model = timm.create_model(name, num_classes=3, img_size=64, **options).eval()
    images = torch.randn(4, 3, 64, 64)
    health = measure_health(model, list(images[:2]))
    for layer in health.values():
        assert layer.attention in name
        assert 1 <= layer.rank <= layer.num_tokens
        # Both kinds divide by their row sums.
        assert layer.row_sum == pytest.approx(1, abs=0.05)
        assert (layer.newton_residual is None) == (layer.attention == "linear")
    batches = [(images, model(images).argmax(-1))]
    found = measure_accuracies(model, batches, health)
    assert found["none"] == accuracy(model, batches) == 1
    assert 0 <= found["all"] <= 1
    assert "dead" not in found
    assert all(0 <= layer.accuracy_off <= 1 for layer in health.values())
    assert health_table(health).count("\n") == 1 + len(health)


def test_dead_attentions_are_switched_off_together():
    model = timm.create_model("softmax_pyramid_pico", num_classes=100, img_size=64, depths=(1, 1, 1, 1)).eval()
    layers, images = attentions(model), torch.randn(16, 3, 64, 64)
    for attn in layers.values():
        torch.nn.init.normal_(attn.proj.weight)
    health = measure_health(model, list(images[:1]))
    dead = list(layers)[:2]
    for name in dead:
        health[name].share = 5e-4
    with switched_off(*map(layers.get, dead)):
        batches = [(images, model(images).argmax(-1))]
    found = measure_accuracies(model, batches, health)
    assert found["dead"] == 1
    assert max(found["none"], found["all"], *(layer.accuracy_off for layer in health.values())) < 1


def test_a_model_without_attention_is_refused():
    with pytest.raises(ValueError, match="attention"):
        measure_health(torch.nn.Linear(2, 2), [torch.zeros(2)])
