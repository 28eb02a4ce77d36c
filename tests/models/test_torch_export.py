"""torch.export, on which ONNX is built too: no data-dependent control flow anywhere in a model."""

import pytest
import torch
from captured_models import TWO_STAGES, cases, create, images


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
