"""Tables of models in timm's columns: published sizes, what is resumed, and models that fail."""

import pytest
import torch
from torch import nn

from benchmarks.atlas import models
from benchmarks.atlas.models import Activations, measure_cases, sizes_of
from benchmarks.timer import Timing


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
    names = ["soft_pico", "test_vit"]
    given = dict(sizes=[(64, 64), (64, 99)], forms=["eager", "compiled"], batches=[1])
    *_, (infer, train) = measure_cases(names, [], [], **given)
    compiled = [f"{name}+compiled" for name in names]
    assert asked[:4] == [(of, 1, (64, 64), mode) for of in (names, compiled) for mode in ("inference", "training")]
    assert [row.infer_img_size for row in infer] == ["64"] * 4 + ["64x99"] * 4
    first = infer[0]
    assert (first.infer_samples_per_sec, first.infer_step_time, first.note) == (4.0, 250.0, "unstable")
    assert (train[0].train_img_size, train[0].train_step_time) == ("64", 250.0)
    # A patch of 16 does not divide 99.
    (failed,) = [
        row for row in infer if row.model == "test_vit" and (row.infer_img_size, row.form) == ("64x99", "eager")
    ]
    assert failed.infer_samples_per_sec is None
    assert "ValueError: test_vit fails on images of 64 x 99" in failed.note
    # What is there is not measured again; the best batch is a case of its own.
    asked.clear()
    *_, (more, _) = measure_cases(names, infer, train, **given)
    assert more == infer
    assert not asked
    *_, (more, _) = measure_cases(names, infer, train, sizes=[(64, 64)], forms=["eager"], batches=[1, "auto"])
    assert asked == [(names, "auto", (64, 64), mode) for mode in ("inference", "training")]
    assert [row.infer_batch_size for row in more[len(infer) :]] == [8, 8]


def test_failures_stay_in_their_row(monkeypatch):
    """A model that fails in training alone has an inference, and what failed is not tried again."""

    def steps(name, *args, modes):
        if modes == ("training",):
            raise RuntimeError("no training here")

    monkeypatch.setattr(models, "try_steps", steps)
    monkeypatch.setattr(models, "measure_models", lambda names, *, modes, **_: [Timing(names[0], *modes, 8, [2.0] * 3)])
    cases = dict(sizes=[(64, 64)], forms=["eager"], batches=["auto"])
    *_, (infer, train) = measure_cases(["soft_pico"], [], [], **cases)
    assert [row.infer_samples_per_sec for row in infer] == [4.0]
    assert [row.note for row in train] == ["RuntimeError: no training here"]
    *_, again = measure_cases(["soft_pico"], infer, train, **cases)
    assert again == (infer, train)
