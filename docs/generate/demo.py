"""Write docs/demo/tiles.onnx, the model of the start page's demo; its weights stay in their file in checkpoints/.

python -m docs.generate.demo
"""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import timm
from torch import Tensor, nn

from soft_vit.export import ExportModel, export
from soft_vit.probe.attentions import attentions, switched_off
from soft_vit.probe.matrix import watch_attention
from soft_vit.weights.files import write_atomically

ROOT = Path(__file__).parents[2]
GRAPH, WEIGHTS = ROOT / "docs" / "demo" / "tiles.onnx", ROOT / "checkpoints" / "soft_plus_pico.tiles.safetensors"
# Smaller tensors stay in the graph, where shapes are inferred from them.
MIN_BYTES = 1024
OUTPUTS = ("logits", "without", "stage1", "stage2")


class TilesDemo(nn.Module):
    """Images `[B, 3, 64, 64]` to logits with and without attention, and the matrices `[B, N, N]` of stages 1 and 2.

    A matrix is the mean over the heads of the stage's only layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model = timm.create_model("soft_plus_pico.tiles", pretrained=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        layers, matrices = list(attentions(self.model).values()), []
        with switched_off(*layers):
            without = self.model(x)
        with ExitStack() as stack:
            for attn in layers[:2]:
                stack.enter_context(watch_attention(attn, lambda matrix: matrices.append(matrix.mean(1))))
            logits = self.model(x)
        return logits, without, *matrices


def main() -> None:
    """Write the ONNX file, verified against the model; tests/docs/test_site.py compares both in a browser."""
    demo = TilesDemo().eval().requires_grad_(False)
    cfg = demo.model.pretrained_cfg
    source = ExportModel(WEIGHTS.stem, demo, cfg["input_size"], cfg["mean"], cfg["std"], cfg["label_names"], OUTPUTS)
    with TemporaryDirectory() as folder:
        path = export(source, Path(folder) / GRAPH.name, "onnx")
        graph = onnx.load(path)
    refer_to_weights(graph.graph.initializer, WEIGHTS)
    write_atomically(GRAPH, graph.SerializeToString())


def refer_to_weights(tensors: Iterable[onnx.TensorProto], path: Path) -> None:
    """Let tensors with the bytes of one in a safetensors file refer to that file as external data, in place."""
    stored = path.read_bytes()
    size = int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8 : 8 + size])
    places = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    offsets = {stored[8 + size + start : 8 + size + stop]: 8 + size + start for start, stop in places}
    for tensor in tensors:
        raw = tensor.raw_data
        if raw in offsets and len(raw) >= MIN_BYTES:
            place = {"location": path.name, "offset": offsets[raw], "length": len(raw)}
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.extend(
                onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in place.items()
            )


if __name__ == "__main__":
    main()
