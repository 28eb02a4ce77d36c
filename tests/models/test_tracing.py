"""Symbolic tracing and vmap: no data-dependent control flow anywhere in a model."""

import pytest
import torch
from captured_models import cases, create, images


@cases
def test_fx_equals_eager(arguments):
    """Bit for bit; gradients in double precision."""
    model = create(arguments)
    traced = torch.fx.symbolic_trace(model)
    # A trace is not tied to a size, and takes the shortcuts of inference where the model does.
    for x in (images(2), images(3), images()[..., :48]):
        # Blocks that compute their activations again run forward without gradients, with the shortcuts of inference.
        exact = not arguments.get("reversible")
        torch.testing.assert_close(traced(x), model(x), rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)
        with torch.inference_mode():
            assert torch.equal(traced(x), model(x))
    model.double()
    gradients = []
    for forward in (model, traced.double()):
        model.zero_grad()
        forward(images().double()).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
    # A trace stores what reversible blocks compute again. Gradients that cancel are held against the largest.
    scale = max(gradient.norm() for gradient in gradients[1].values())
    for n, gradient in gradients[1].items():
        assert (gradients[0][n] - gradient).norm() <= 1e-10 * max(gradient.norm(), 1e-3 * scale), n


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
