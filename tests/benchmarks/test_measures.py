"""What is timed and counted, in which order, and by which form."""

from functools import partial
from itertools import pairwise

import pytest
import timm
import torch
from captured_models import TWO_STAGES

from benchmarks.memory import measure_savings, training_memory
from benchmarks.models import measure_models, published_names
from benchmarks.naive import naive_formulation, naive_soft_attention
from benchmarks.operator import make_inputs, measure_operators
from benchmarks.registry import OPERATORS, create_variant, inputs_of
from benchmarks.resolution import FORMS, measure_resolutions
from benchmarks.timer import measure, time_in_turn
from soft_vit.layers.attention.soft import SoftAttention
from soft_vit.ops import soft_attention_reference
from soft_vit.probe.cost import peak_memory

# The order in which contenders are timed, how calls are counted and averaged, and steps without memory.


def test_contenders_take_turns_and_the_first_round_does_not_count():
    calls = []
    seconds = time_in_turn({name: partial(calls.append, name) for name in "abc"}, 20, "cpu")
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 21
    assert {"".join(sorted(turn)) for turn in rounds} == {"abc"}
    assert {name: len(times) for name, times in seconds.items()} == {"a": 20, "b": 20, "c": 20}
    # Everyone comes after everyone.
    assert {first + second for first, second in pairwise(calls)} >= {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_a_step_without_memory_leaves_the_others_alone():
    given = torch.zeros(10)
    steps = {"large": lambda: torch.empty(1 << 50), "small": lambda: given * 2, "uncounted": lambda: None}
    large, small, uncounted = measure(steps, "forward", 7, 3, "cpu", counted=("large", "small"))
    assert (large.seconds, large.memory) == ((), None)
    assert (len(small.seconds), small.memory) == (3, 40)
    assert (len(uncounted.seconds), uncounted.memory) == (3, None)


# Counting the bytes of live tensors.


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_peak_by_hand(device):
    def work():
        a = torch.zeros(1000, device=device)
        b = a + 1  # 8,000 bytes live
        del a
        c = b * 2  # 8,000 again
        d = torch.cat([b, c])  # 16,000
        del b, c
        return d.view(2, 1000)[0]  # a view holds no bytes of its own

    assert peak_memory(work, device) == 16_000


VIEWS = [lambda x: x.mT, lambda x: x.flatten(), lambda x: x[0], lambda x: x.detach(), torch.relu_]


@pytest.mark.parametrize("look", VIEWS)
def test_tensors_from_before_are_not_counted(look):
    x = torch.zeros(8, 125)
    assert peak_memory(lambda: look(x), "cpu") == 0
    assert peak_memory(lambda: look(x) + 1, "cpu") == look(x).nbytes


@pytest.mark.parametrize("name", ["soft_norm_pico", "linformer_pyramid_pico"])
def test_shapes_alone_hold_what_a_step_holds(name):
    shape = (2, 3, 64, 96)
    options = {"img_size": shape[2:], **TWO_STAGES, **({"newton_iters": 2} if name.startswith("soft") else {})}
    model = timm.create_model(name, **options)
    x = torch.randn(shape)
    measured = peak_memory(lambda: model(x).sum().backward(), "cpu")
    counted = training_memory(partial(timm.create_model, name, **options), shape, "cpu")
    # Gradients of weights are held in both; sums and counters of BatchNorm are not counted alike.
    assert counted == pytest.approx(measured, rel=1e-3)


@pytest.mark.slow
def test_each_saving_saves():
    peaks = measure_savings("soft_pico", (2, 3, 96, 64), **TWO_STAGES, newton_iters=2)
    plain = peaks.pop("plain")
    assert all(peak < plain for peak in peaks.values())


# Models that are timed, their batches, and those that run out of memory.


SMALL = dict(batch_size=2, img_size=(32, 32), rounds=3)


def test_every_model_is_timed_in_every_mode():
    # timm's model is built for 160 x 160 pixels; a folded model cannot train.
    names = ["soft_pico", "test_vit", "soft_pico+folded", "soft_pico"]
    timings = measure_models(names, **SMALL | dict(img_size=(32, 48)), memory=True)
    labels = ["soft_pico", "test_vit", "soft_pico+folded", "soft_pico (2)"]
    assert [(t.mode, t.target) for t in timings] == [
        *(("inference", label) for label in labels),
        *(("training", label) for label in labels if "folded" not in label),
    ]
    assert all(len(t.seconds) == 3 and t.size == 2 for t in timings)
    assert timings[0].memory < timings[4].memory
    assert {timing.flops for timing in timings if "vit" not in timing.target} == {timings[0].flops}
    assert all(timing.of_peak > 0 for timing in timings)


# Operators: all forms of softmax-free attention are one function, and what is counted of a call.


TINY = dict(num_bottleneck=4, head_dim=16)


@pytest.mark.parametrize("name", [name for name in OPERATORS if "triton" not in name])
def test_forms_of_one_function(name):
    """Softmax-free forms agree on tokens far enough apart for Newton to have converged."""
    tensors = {name: 4 * tensor for name, tensor in make_inputs(63, 2, 3, 6, 16).items()}
    expected = OPERATORS["naive"](**inputs_of(OPERATORS["naive"], tensors))
    inputs = inputs_of(OPERATORS[name], tensors)
    actual = OPERATORS[name](**inputs)
    assert actual.shape == expected.shape
    if "k" not in inputs:
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_memory_by_hand(monkeypatch):
    """Of `4 (q v)`: forward holds q v with the result, and backward the result, dx, 4 dx and both gradients."""
    monkeypatch.setitem(OPERATORS, "naive", lambda q, v: q * v * 4)
    forward, both = measure_operators(["naive"], (20,), rounds=3, num_heads=1, head_dim=25)
    assert (forward.memory, both.memory) == (2 * 2000, 5 * 2000)


# Models by name with variants; the naive one is the same function with the same gradients.


BACKENDS = {"soft_pico": None, "soft_pico+eager": "eager", "test_vit+soft": None}
BACKENDS["soft_norm_pico+folded+triton"] = "triton"


@pytest.mark.parametrize(("name", "backend"), BACKENDS.items())
def test_every_attention_has_the_backend(name, backend):
    attentions = [module for module in create_variant(name).modules() if isinstance(module, SoftAttention)]
    assert attentions
    assert {attention.backend for attention in attentions} == {backend}


@pytest.mark.parametrize(("normalize", "start", "ridge"), [(False, "rowsum", 0.01), (True, "guarded_image", 0.0)])
def test_operator(normalize, start, ridge):
    q, bottleneck, v = (torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for n in (63, 6, 63))
    options = {"normalize": normalize, "ridge": ridge}
    gradient = "unrolled" if normalize else "closed_form"
    naive = naive_soft_attention(q, bottleneck, v, start=start, **options)
    expected = soft_attention_reference(q, bottleneck, v, newton_start=start, newton_gradient=gradient, **options)
    torch.testing.assert_close(naive, expected)
    target = torch.randn_like(naive)
    # A detached start: the released backward is that of the inverse alone, which the reference's also is.
    for pair in zip(*(torch.autograd.grad(x, (q, bottleneck, v), target) for x in (naive, expected)), strict=True):
        torch.testing.assert_close(*pair)


@pytest.mark.parametrize("name", ["soft_pico", "soft_norm_pico"])
def test_model(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5).double().eval()
    x = torch.randn(2, 3, 65, 97, dtype=torch.float64)
    logits = model(x)
    naive = naive_formulation(model)
    assert naive is model
    torch.testing.assert_close(naive(x), logits)


# The cost of a backbone per token: constant with a bound on the bottleneck tokens, and not without.


SIZES = [(224, 224), (416, 672)]
# The first stage has the largest maps, and fewer operations are counted faster.
QUICK = {**TWO_STAGES, "out_indices": (0, 1), "inverse": "cholesky"}


def test_published_models_are_small_and_take_the_size(monkeypatch):
    names = ["soft_pico", "resnet18", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"]
    monkeypatch.setattr("benchmarks.models.published", lambda: dict.fromkeys(names))
    monkeypatch.setattr("benchmarks.models.load_index", list)
    assert published_names(8e6, (64, 96)) == ["soft_pico+capped", "vit_tiny_patch16_224"]


@pytest.mark.slow
def test_a_bound_keeps_memory_linear_and_changes_nothing_at_224():
    memory = measure_resolutions("soft_pico", SIZES, {form: QUICK | by for form, by in FORMS.items()}, rounds=0)
    bounded, released = FORMS
    first, large = (memory[bounded, size] for size in SIZES)
    assert large.memory / large.size <= 1.3 * first.memory / first.size
    # Without it, the first stage holds a kernel with 13 x 21 bottleneck tokens.
    assert memory[released, SIZES[1]].memory > max(large.memory, 4 * large.size * 13 * 21)
    assert memory[released, SIZES[0]].memory == first.memory
