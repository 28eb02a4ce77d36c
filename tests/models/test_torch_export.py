"""torch.export and ONNX: no data-dependent control flow anywhere in a model."""

import pytest
import torch
from captured_models import CASES, TWO_STAGES, create, images

# One of each part that makes sizes: both forms of the attention, pooled maps, and all options of the pyramid.
FAST = ("soft", "soft stage 4, average sampling", "all")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(arguments, id=name, marks=[] if name in FAST else pytest.mark.slow)
        for name, arguments in CASES.items()
    ],
)
def test_export_with_dynamic_batch(arguments):
    model = create(arguments)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images(),), dynamic_shapes={"x": {0: batch}}).module()
    exported, eager = program(images(5)), model(images(5))
    exact = model.double()(images(5).double())
    # Sums of other blocks round otherwise, and the inverse of a flat kernel enlarges that.
    error, eager_error = ((logits - exact).norm() / exact.norm() for logits in (exported, eager))
    assert error <= 2 * eager_error + 16 * torch.finfo(torch.float32).eps


def test_onnx_equals_eager(tmp_path):
    """The normalised model in two stages; of soft_pico, tests/export looks at the file."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = create(CASES["soft_norm"], **TWO_STAGES)
    batch = torch.export.Dim("batch", min=1, max=64)
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, (images(),), path, dynamo=True, dynamic_shapes={"x": {0: batch}}, verbose=False)
    session = onnxruntime.InferenceSession(path)
    for size in (1, 5):
        (logits,) = session.run(None, {session.get_inputs()[0].name: images(size).numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(logits), model(images(size)), rtol=1e-4, atol=1e-5)
