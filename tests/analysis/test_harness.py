"""Who is timed when, what becomes of the figures, and the models that are measured."""

from functools import partial
from itertools import pairwise

import matplotlib
import pytest
import timm
import torch
from matplotlib import pyplot

from soft_vit.analysis import harness
from soft_vit.analysis.harness import load_pyramid, numbered, seconds_of, time_in_turn
from soft_vit.probe.curves import plot_curves
from soft_vit.weights import WeightsError


def test_names_that_come_again_are_numbered():
    assert numbered(["a", "b", "a", "a+x", "a"]) == {"a": "a", "b": "b", "a (2)": "a", "a+x": "a+x", "a (3)": "a"}


def test_contenders_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = time_in_turn({name: partial(calls.append, name) for name in "abc"}, 20, "cpu")
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 21
    assert {"".join(sorted(turn)) for turn in rounds} == {"abc"}
    assert {name: len(times) for name, times in seconds.items()} == {"a": 20, "b": 20, "c": 20}
    # Everyone comes after everyone.
    assert {first + second for first, second in pairwise(calls)} >= {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_rounds_that_fit_a_time_and_short_steps_that_are_repeated(monkeypatch):
    calls, given = [], []
    monkeypatch.setattr(harness, "seconds_of", lambda step, device, repeats=1: calls.append(repeats) or 0.5)
    seconds = time_in_turn(dict.fromkeys("ab", print), lambda s: given.append(s) or 4, "cpu", least_seconds=1.2)
    assert seconds == {"a": [0.5] * 4, "b": [0.5] * 4}
    # Each of both runs twice in the warm-up round, then three times in a row.
    assert calls == [1] * 4 + [3] * 8
    assert given == [3.0]


def test_a_short_step_on_a_gpu(monkeypatch):
    """One call in each round is not counted, and as many follow as make a measurement long enough."""
    calls = []
    monkeypatch.setattr(harness, "seconds_of", lambda step, device, repeats=1: calls.append(repeats) or 1e-3)
    assert time_in_turn({"a": partial(calls.append, "uncounted")}, 3, "cuda") == {"a": [1e-3] * 3}
    assert calls == ["uncounted", 1] + ["uncounted", 6] * 3


def test_repeats_are_averaged(monkeypatch):
    calls, clock = [], iter([3.0, 13.0])
    monkeypatch.setattr(harness.time, "perf_counter", lambda: next(clock))
    assert seconds_of(partial(calls.append, None), "cpu", repeats=5) == 2
    assert len(calls) == 5


@pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes"])
def test_recorded_weights(name):
    model, title = load_pyramid(name)
    assert title == "soft_pico.shapes, pretrained"
    assert not model.training
    expected = timm.create_model("soft_pico.shapes", pretrained=True).state_dict()
    torch.testing.assert_close(model.state_dict(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes"])
def test_weights_of_a_file(name, tmp_path):
    source = timm.create_model("soft_pico", img_size=64)
    torch.save(source.state_dict(), tmp_path / "epoch_5.pth")
    model, title = load_pyramid(name, (64, 64), checkpoint=tmp_path / "epoch_5.pth")
    assert title == "soft_pico, epoch_5.pth"
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(model.forward_features(x), source.eval().forward_features(x), rtol=0, atol=0)


@pytest.mark.parametrize(("img_size", "expected"), [(None, (224, 224)), ((63, 100), (63, 100))], ids=str)
def test_random_weights_of_a_size(img_size, expected):
    model, title = load_pyramid("linear_pyramid_pico", img_size, pretrained=False)
    assert (model.img_size, title) == (expected, "linear_pyramid_pico, random weights")


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("resnet18", {}, ValueError, "resnet18 is not a pyramid"),
        ("soft_pico.none", {}, ValueError, "soft_pico.none is not a pyramid"),
        ("soft_pico", {"checkpoint": "none.pth"}, FileNotFoundError, "no checkpoint none.pth"),
        ("soft_norm_pico", {}, WeightsError, "No pretrained weights exist for soft_norm_pico"),
        ("soft_pico", {"device": "gpu"}, ValueError, "There is no device 'gpu' here; choose from cpu"),
        ("soft_pico", {"device": "cuda:99"}, ValueError, "There is no device 'cuda:99' here"),
    ],
)
def test_mistake_is_one_sentence(name, options, error, message):
    with pytest.raises(error, match=message) as caught:
        load_pyramid(name, **options)
    assert "\n" not in str(caught.value)


def test_no_backend_is_chosen_and_no_figure_kept(tmp_path):
    before = matplotlib.get_backend()
    try:
        matplotlib.use("svg")
        plot_curves({"run": {"loss": ("epoch", [1, 2], [3.0, 2.0])}}, tmp_path / "figure.png")
        assert matplotlib.get_backend() == "svg"
        assert not pyplot.get_fignums()
    finally:
        matplotlib.use(before)
