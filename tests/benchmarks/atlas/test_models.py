"""Tables of models in timm's columns: published sizes, what is resumed, and models that fail."""

import pytest
import torch
from torch import nn

from benchmarks.atlas import models
from benchmarks.atlas.models import Activations, measure_cases, sizes_of
from benchmarks.timer import MODES, Timing


@pytest.mark.parametrize(
    ("name", "size", "published"),
    [
        # results/benchmark-infer-fp32-nchw-pt240-cpu-i7_12700h-dynamo.csv of huggingface/pytorch-image-models.
        ("deit_tiny_patch16_224", 224, (5.72, 1.26, 5.97)),
        ("pvt_v2_b0", 224, (3.67, 0.57, 7.99)),
        ("test_vit", 160, (0.37, 0.04, 0.48)),
    ],
)
def test_sizes_are_those_that_timm_publishes(name, size, published):
    assert sizes_of(name, (size, size)) == pytest.approx(published, abs=0.0101)


def test_activations_of_one_layer_each():
    x = torch.randn(2, 3, 8, 8)
    with Activations() as activations, torch.no_grad():
        y = nn.Conv2d(3, 4, 3, padding=1)(x)  # 2 * 4 * 64
        nn.Linear(8, 5)(y)  # 2 * 4 * 8 * 5
        # Two heads of 7 tokens: scores 7 * 6, results 7 * 3.
        nn.functional.scaled_dot_product_attention(*(torch.randn(1, 2, *s) for s in ((7, 3), (6, 3), (6, 3))))
    assert activations.count == 512 + 320 + 2 * (42 + 21)


def test_models_beside_each_other_and_those_that_fail(monkeypatch):
    asked = []

    def measure(names, *, batch_size, img_size, modes, **options):
        asked.append((names, batch_size, img_size, *modes))
        size = 1 if batch_size == 1 else 8
        return [Timing(name, mode, size, [size / 3.9, size / 4.0, size / 4.5]) for mode in modes for name in names]

    monkeypatch.setattr(models, "measure_models", measure)
    names = ["none_pyramid_pico", "test_vit"]
    given = dict(sizes=[(64, 64), (64, 99)], forms=["eager", "compiled"], batches=[1])
    *_, rows = measure_cases(names, [], **given)
    compiled = [f"{name}+compiled" for name in names]
    assert asked[:4] == [(of, 1, (64, 64), mode) for of in (names, compiled) for mode in MODES]
    assert [row.img_size for row in rows] == ["64"] * 8 + ["64x99"] * 8
    assert (rows[0].samples_per_sec, rows[0].step_time, rows[0].note) == (4.0, 250.0, "unstable")
    # A patch of 16 does not divide 99.
    failed = [row for row in rows if row.samples_per_sec is None]
    assert {(row.model, row.img_size) for row in failed} == {("test_vit", "64x99")}
    assert len(failed) == 4
    assert all("ValueError: test_vit" in row.note for row in failed)
    # What is there is not measured again; the best batch is a case of its own.
    asked.clear()
    *_, more = measure_cases(names, rows, sizes=[(64, 64)], forms=["eager"], batches=[1, "auto"])
    assert asked == [(names, "auto", (64, 64), mode) for mode in MODES]
    assert [row.batch_size for row in more[len(rows) :]] == [8] * 4
