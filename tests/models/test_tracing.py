"""Symbolic tracing, export, compilation and ONNX: no data-dependent control flow anywhere in a model."""

import pytest
import timm
import torch

from soft_vit.models import PyramidViT

CASES = {
    "soft": dict(model_name="soft_pico"),
    "soft_norm": dict(model_name="soft_norm_pico"),
    "cholesky": dict(model_name="soft_pico", inverse="cholesky"),
    "soft stage 4, average sampling": dict(model_name="soft_norm_pico", stage4="soft", sampling="avg"),
    "capped bottleneck": dict(model_name="soft_pico", max_bottleneck=(1, 2)),
    "random sampling": dict(model_name="soft_pico", sampling="random"),
}
SIZE = (64, 80)

cases = pytest.mark.parametrize("arguments", CASES.values(), ids=CASES.keys())


def create(arguments: dict) -> PyramidViT:
    torch.manual_seed(0)
    return timm.create_model(**arguments, num_classes=7, img_size=48).eval()


def images(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, *SIZE, generator=torch.Generator().manual_seed(2))


@cases
def test_fx_equals_eager_bit_for_bit(arguments):
    model = create(arguments)
    traced = torch.fx.symbolic_trace(model)
    # With gradients: without them, on a CPU, eager fuses what the trace holds apart. A trace is not tied to a size.
    for x in (images(2), images(3), images()[..., :48]):
        torch.testing.assert_close(traced(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["soft_pico", "soft_norm_pico"])
def test_fx_backward_equals_eager(name):
    model = create({"model_name": name})
    gradients = []
    for forward in (model, torch.fx.symbolic_trace(model)):
        model.zero_grad()
        forward(images()).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
    for parameter, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][parameter], gradient, rtol=0, atol=0, msg=parameter)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # sizes become constants
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
@pytest.mark.parametrize("name", ["soft_pico", "sparse_pyramid_pico"])
def test_traced_as_torch_checks_it(name):
    """torch.jit.trace traces a second time, without gradients, and refuses another graph."""
    model = create({"model_name": name})
    traced = torch.jit.trace(model, images())
    torch.testing.assert_close(traced(images(3)), model(images(3)), rtol=1e-4, atol=1e-5)


@cases
def test_export_with_dynamic_batch(arguments):
    model = create(arguments)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images(),), dynamic_shapes={"x": {0: batch}}).module()
    exported, eager = program(images(5)), model(images(5))
    exact = model.double()(images(5).double())
    # Sums of other blocks round otherwise, and the inverse of a flat kernel enlarges that.
    error, eager_error = ((logits - exact).norm() / exact.norm() for logits in (exported, eager))
    assert error <= 2 * eager_error + 16 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(
    ("name", "autocast"), [("soft_pico", False), ("soft_norm_pico", False), ("soft_pico", True)], ids=str
)
def test_compile_without_graph_breaks(name, autocast):
    """With fullgraph a break is an error; aot_eager checks forward and backward graphs and generates no code."""
    gradients = []
    for compiled in (False, True):
        model = create({"model_name": name}).train()
        forward = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
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
    model = create(arguments)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.compile(model, fullgraph=True)(images()), model(images()), rtol=1e-4, atol=1e-5
        )


def test_onnx_equals_eager(tmp_path):
    """The normalised model; of soft_pico, tests/export looks at the file."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = create({"model_name": "soft_norm_pico"})
    batch = torch.export.Dim("batch", min=1, max=64)
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, (images(),), path, dynamo=True, dynamic_shapes={"x": {0: batch}}, verbose=False)
    session = onnxruntime.InferenceSession(path)
    for size in (1, 5):
        (logits,) = session.run(None, {session.get_inputs()[0].name: images(size).numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), model(images(size)), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["soft_pico", "local_pyramid_pico"])
def test_gradients_of_every_image_by_vmap(name):
    model, x = create({"model_name": name}), images()
    parameters = {n: p.detach() for n, p in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    model(x).square().sum().backward()
    scale = max(p.grad.norm() for p in model.parameters())
    for n, p in model.named_parameters():
        # Gradients that cancel are held against the largest.
        assert (each[n].sum(0) - p.grad).norm() <= 1e-4 * max(p.grad.norm(), 1e-3 * scale), n
