"""Write docs/demo/*.onnx, the models of the demos in the site's pages; weights stay in their files in checkpoints/.

python -m docs.generate.demo --data ROOT

ROOT has Debian's Fashion-MNIST, see docs/real.md.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import timm
from onnx.external_data_helper import set_external_data
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from soft_vit.cli import ArgumentParser, command_line
from soft_vit.export import ExportModel, export
from soft_vit.probe.attentions import attentions, switched_off
from soft_vit.probe.matrix import watch_attention
from soft_vit.weights.files import write_atomically
from studies.real.data import items

ROOT = Path(__file__).parents[2]
# Smaller tensors stay in the graph, where shapes are inferred from them.
MIN_BYTES = 1024
# The picture of items has so many of each class.
ITEMS = 2


class Demo(nn.Module):
    """Images to logits, and the matrices `[B, N, N]` of stages 1 and 2: the mean over the heads of their only layer."""

    outputs: tuple[str, ...] = ("logits", "stage1", "stage2")

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.path = ROOT / "docs" / "demo" / f"{tag}.onnx"
        self.weights = ROOT / "checkpoints" / f"soft_plus_pico.{tag}.safetensors"
        self.model = timm.create_model(f"soft_plus_pico.{tag}", pretrained=True)
        cfg = self.model.pretrained_cfg
        self.input_size, self.mean, self.std = cfg["input_size"], cfg["mean"], cfg["std"]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        matrices: list[Tensor] = []
        with ExitStack() as stack:
            for attn in list(attentions(self.model).values())[:2]:
                stack.enter_context(watch_attention(attn, lambda matrix: matrices.append(matrix.mean(1))))
            logits = self.model(x)
        return logits, *matrices


class TilesDemo(Demo):
    """The same of images `[B, 3, 64, 64]`, and logits without attention."""

    outputs = ("logits", "without", "stage1", "stage2")

    def __init__(self) -> None:
        super().__init__("tiles")

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with switched_off(*attentions(self.model).values()):
            without = self.model(x)
        logits, *matrices = super().forward(x)
        return logits, without, *matrices


class FashionDemo(Demo):
    """The same of images `[B, 1, 28, 28]` with values in [0, 1], which it enlarges and normalises."""

    def __init__(self) -> None:
        super().__init__("fashion")
        self.size, self.shift, self.scale = self.input_size[1:], self.mean[0], self.std[0]
        self.input_size, self.mean, self.std = (1, 28, 28), (0.0,), (1.0,)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = F.interpolate(x, self.size, mode="bilinear")
        return super().forward(((x - self.shift) / self.scale).expand(-1, 3, -1, -1))


@command_line
def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m docs.generate.demo")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="also draw items, and measure the Fashion-MNIST file")
    args = parser.parse_args(argv)
    fashion = FashionDemo()
    for demo in (TilesDemo(), fashion):
        write_model(demo)
    if args.data:
        images, labels = (part.numpy() for part in items(args.data, "test"))
        # The first items of each class, a column a class.
        columns = [np.concatenate(images[labels == label][:ITEMS]) for label in range(labels.max() + 1)]
        Image.fromarray(np.concatenate(columns, axis=1)).save(fashion.path.with_suffix(".png"), optimize=True)
        share = np.mean(predictions(fashion, images) == labels)
        print(f"{fashion.path.name} names {share:.2%} of {len(labels)} test images right.")


def write_model(demo: Demo) -> None:
    """Write a demo's ONNX file, verified against the model; tests/docs/test_site.py compares both in a browser."""
    demo.eval().requires_grad_(False)
    names = demo.model.pretrained_cfg["label_names"]
    source = ExportModel(demo.weights.stem, demo, demo.input_size, demo.mean, demo.std, names, demo.outputs)
    with TemporaryDirectory() as folder:
        graph = onnx.load(export(source, Path(folder) / demo.path.name, "onnx"))
    refer_to_weights(graph.graph, demo.weights)
    write_atomically(demo.path, graph.SerializeToString())


def predictions(demo: Demo, images: np.ndarray, batch: int = 100) -> np.ndarray:
    """Return the classes `[n]` that a demo's ONNX file names in images, uint8 `[n, 28, 28]`."""
    with TemporaryDirectory() as folder:
        # The runtime reads weights from the folder of the file.
        for path in (demo.path, demo.weights):
            shutil.copy(path, folder)
        session = onnxruntime.InferenceSession(Path(folder) / demo.path.name)
    batches = np.array_split(images[:, None].astype(np.float32) / 255, len(images) // batch)
    return np.concatenate([session.run(["logits"], {"images": each})[0].argmax(1) for each in batches])


def refer_to_weights(graph: onnx.GraphProto, path: Path) -> None:
    """Let tensors with the bytes of one in a safetensors file refer to that file as external data, in place.

    A tensor with the bytes of a transposed one becomes a node that transposes it, which runtimes compute once.
    """
    stored = path.read_bytes()
    size = int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8 : 8 + size])
    places = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    offsets = {stored[8 + size + start : 8 + size + stop]: 8 + size + start for start, stop in places}
    for tensor in graph.initializer:
        raw = tensor.raw_data
        if len(raw) < MIN_BYTES:
            continue
        if raw not in offsets and len(tensor.dims) == 2:
            raw = onnx.numpy_helper.to_array(tensor).T.tobytes()
            if raw in offsets:
                stored_name = f"{tensor.name}.transposed"
                graph.node.insert(0, onnx.helper.make_node("Transpose", [stored_name], [tensor.name], perm=[1, 0]))
                tensor.name, tensor.dims[:] = stored_name, tensor.dims[::-1]
        if raw in offsets:
            set_external_data(tensor, path.name, offsets[raw], len(raw))
            tensor.ClearField("raw_data")


if __name__ == "__main__":
    main()
