"""Models as graphs: compiled, exported, traced by torch.fx, and under vmap."""

import pytest
import timm
import torch
from captured_models import CASES, TWO_STAGES, cases, create, images
from models.zoo.families import SAME_BODY, SHALLOW, SMALL
from timm.models import create_feature_extractor, get_graph_node_names

from soft_vit.models.pyramid import PyramidViT

# Compilation: no graph breaks, and what is generated computes the same.


ONE_STAGE = dict(depths=(1,), embed_dims=(32,), num_heads=(1,), sr_ratios=(8,), newton_iters=2)
ONE_STAGE |= dict(attention=("soft",), class_token=False, global_pool="avg")
MORE = [("soft", False), ("soft_norm", False), ("soft", True), ("all", False)]
MORE = [pytest.param(*case, "aot_eager", marks=pytest.mark.slow) for case in MORE]


@pytest.mark.parametrize(("case", "autocast", "backend"), [("soft", False, "eager"), *MORE])
def test_compile_without_graph_breaks(case, autocast, backend):
    """With fullgraph a break is an error; aot_eager checks backward graphs as well, and generates no code."""
    torch._dynamo.reset()
    gradients = []
    for compiled in (False, True):
        model = create(CASES[case], **(ONE_STAGE if case == "soft" else TWO_STAGES)).train()
        forward = torch.compile(model, fullgraph=True, backend=backend) if compiled else model
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = forward(images())
        out.float().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    for parameter, gradient in gradients[0].items():
        # Under autocast the graph may round to bf16 in other places than eager does. A bias before a BatchNorm has a
        # gradient of rounding alone, whatever the precision: hence the absolute part.
        error = (gradients[1][parameter] - gradient).norm()
        relative, absolute = (0.1, 0.05) if autocast else (1e-4, 1e-4)
        assert error < relative * gradient.norm() + absolute, parameter


@pytest.mark.slow
@cases
def test_generated_code_equals_eager(arguments):
    torch._dynamo.reset()
    model = create(arguments)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.compile(model, fullgraph=True)(images()), model(images()), rtol=1e-4, atol=1e-5
        )


# torch.export, on which ONNX is built too: no data-dependent control flow anywhere in a model.


# A quick one is in tests/export.
@pytest.mark.slow
@cases
def test_export_with_dynamic_batch(arguments):
    model = create(arguments, **TWO_STAGES)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images(),), dynamic_shapes={"x": {0: batch}}).module()
    exported, eager = program(images(5)), model(images(5))
    exact = model.double()(images(5).double())
    # Sums of other blocks round otherwise, and the inverse of a flat kernel enlarges that.
    error, eager_error = ((logits - exact).norm() / exact.norm() for logits in (exported, eager))
    assert error <= 2 * eager_error + 16 * torch.finfo(torch.float32).eps


# Feature extraction by torch.fx as timm does it, and gradients of every image by vmap.


# A name, and what makes the model small.
MODELS: dict[str, tuple[str, dict]] = {
    **{name: (name, SHALLOW) for name in ("soft_pico", "local_pyramid_pico")},
    "reversible": ("soft_pico", {"reversible": True}),
    **{family: row for family, row in SMALL.items() if family not in SAME_BODY},
    "performer_vit": ("performer_vit_tiny_patch16", {"depth": 1, "img_size": 64}),
    "local_vit": ("local_vit_tiny_patch16", {"depth": 1, "img_size": 64, "dynamic_img_size": True}),
}


@pytest.mark.parametrize(("name", "options"), MODELS.values(), ids=MODELS)
def test_features_of_a_graph_equal_those_of_the_model(name, options):
    """With gradients and in inference, where a model adds in one pass, at the size that was traced and at another."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options).eval()
    last = model.pretrained_cfg["classifier"]
    # Of these, no classifier gives what the model returns.
    last = get_graph_node_names(model)[1][-1] if name in ("care_s0", "efficientvit_sam_l0") else last
    traced = create_feature_extractor(model, [last])
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for given in (x, torch.randn(1, 3, 64, 112 if getattr(model, "dynamic_img_size", True) else 64)):
            found, expected = traced(given)[last], model(given)
            assert (found - expected).norm() <= 4e-6 * expected.norm()
    x.requires_grad_()
    gradients = [torch.autograd.grad(logits.square().sum(), x)[0] for logits in (traced(x)[last], model(x))]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*is deprecated")
def test_torch_jit_traces_inference():
    """As counters of FLOPs and TensorBoard do; the graph takes any batch, of images with many tokens, too."""
    model = timm.create_model(MODELS["mila"][0], **MODELS["mila"][1]).eval()
    with torch.no_grad():
        graph, x = torch.jit.trace(model, torch.randn(1, 3, 192, 192), check_trace=False), torch.randn(2, 3, 192, 192)
        assert (graph(x) - model(x)).norm() <= 4e-6 * model(x).norm()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["soft_pico", "local_pyramid_pico"])
def test_gradients_of_every_image_by_vmap(name):
    model, x = create({"model_name": name}), images()
    assert isinstance(model, PyramidViT)
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    model(x).square().sum().backward()
    scale = max(p.grad.norm() for p in model.parameters())
    for n, p in model.named_parameters():
        # Gradients that cancel are held against the largest.
        assert (each[n].sum(0) - p.grad).norm() <= 1e-4 * max(p.grad.norm(), 1e-3 * scale), n
