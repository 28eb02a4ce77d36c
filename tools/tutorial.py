"""A tour of the package, on a CPU and without any download; read it beside what it prints.

python tools/tutorial.py --out tutorial
"""

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from inspect import getdoc
from pathlib import Path
from typing import Any

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from soft_vit.cli import command_line
from soft_vit.data import CLASSES, ShapeImages, normalised_batch
from soft_vit.models import fold_batch_norm
from soft_vit.ops import cholesky_solve, eigh_inverse, newton_inverse, self_gaussian_kernel
from soft_vit.ops.soft.newton import newton_residual
from soft_vit.predict.drawing import draw_classes
from soft_vit.probe.attentions import switched_off
from soft_vit.probe.complexity import count_complexity
from soft_vit.probe.matrix import watch_attention
from soft_vit.probe.view import attention_row, plot_attention_row

CURVED = ("circle", "ring", "crescent", "heart")


def show(number: int, title: str, part: Callable, *args: Any) -> Any:
    """Print a part's title and docstring, and run it."""
    print(f"\n{number}. {title}\n{'-' * (len(title) + 3)}\n{getdoc(part)}\n")
    return part(*args)


def batch_of(samples: Sequence, model: nn.Module) -> Tensor:
    """Generated images as the model takes them: `[B, 3, H, W]`, normalised with its mean and std."""
    return normalised_batch(samples, model.pretrained_cfg["mean"], model.pretrained_cfg["std"])


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.inference_mode():
        return 100 * (model.eval()(images).argmax(1) == labels).float().mean().item()


def look_at_a_model() -> None:
    """A pyramid of four stages at strides 4, 8, 16 and 32, with softmax-free attention in the first three.

    Attention compares each of N tokens with every other. SOFT compares them with M bottleneck tokens only, one for each
    window of the map, and these with each other: the kernels K1, N x M, and A, M x M, replace a matrix of N x N.
    """
    model = timm.create_model("soft_tiny", num_classes=10).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    image = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        maps = model.forward_intermediates(image, intermediates_only=True)
        print(
            f"soft_tiny, {parameters / 1e6:.2f} M parameters: {tuple(image.shape)} becomes {tuple(model(image).shape)}."
        )
    print("stage  map      tokens N  window  bottleneck tokens M    N x N  2 N x M + M x M")
    for number, (stage, feature) in enumerate(zip(model.stages[:3], maps, strict=False), 1):
        height, width = feature.shape[-2:]
        tokens, window = height * width, stage.blocks[0].attn.sr_ratio
        few = (height // window) * (width // window)
        numbers = 2 * tokens * few + few * few
        print(
            f"{number:<5}  {height:>2} x {width:<2}  {tokens:>8}  {window:>6}  {few:>19}  {tokens**2:>7}  {numbers:>15}"
        )


def predict(model: nn.Module, out: Path) -> None:
    """`pretrained=True` finds soft_pico.shapes in the package itself, so this works offline."""
    samples = ShapeImages(200, split="test")
    labels = torch.tensor([sample.label for sample in samples])
    images = batch_of(samples, model)
    print(f"soft_pico.shapes was trained on generated images of: {', '.join(CLASSES)}.")
    print(f"Top-1 on 200 test images: {accuracy(model, images, labels):.1f} %.")
    with torch.inference_mode():
        scores = model(images[:1]).softmax(1)[0]
    best = scores.topk(3)
    names = [CLASSES[index] for index in best.indices]
    print("The first one: " + ", ".join(f"{name} {100 * p:.1f} %" for name, p in zip(names, best.values, strict=True)))
    draw_classes(Image.fromarray(samples[0].image), names, best.values.tolist()).save(out / "prediction.png")
    Image.fromarray(samples[0].image).save(out / "shape.png")
    print(f"Written: {out / 'prediction.png'}, {out / 'shape.png'}")


def attention_matrices(model: nn.Module, image: Tensor) -> list[Tensor]:
    """`[heads, N, N]` of the first layer of each stage, which only an analysis ever computes."""
    matrices = []
    with ExitStack() as stack, torch.inference_mode():
        for stage in model.stages:
            stack.enter_context(watch_attention(stage.blocks[0].attn, matrices.append))
        model(image)
    return [matrix[0] for matrix in matrices]


def look_at_attention(model: nn.Module, out: Path) -> None:
    """How strong attention is, what it is worth, and where it looks.

    The rank of a matrix is at most the number of bottleneck tokens, 4 in each stage at 64 pixels. Without softmax, the
    rows of SOFT are no distributions. Released models make bottleneck tokens by convolution, LayerNorm and GELU; before
    training these lie far from the queries, where the Gaussian kernel is small, and a short training leaves them there.
    soft_plus brings both closer and divides each row by its sum, unless that is close to zero: a token may attend to
    nothing. soft_plus_pico.tiles has learned a question that no part of an image answers: the right colour of the tile
    whose left colour is that of the tile with a white half.
    """
    alive = timm.create_model("soft_plus_pico.tiles", pretrained=True).eval()
    print("                                         mean sum of a row in stage    top-1 %")
    print("model              scene  rank, stage 1      1        2        3    whole  attentions off  stages 1-3 off")
    for net, scene in ((model, "shape"), (alive, "tiles")):
        samples = ShapeImages(100, split="test", scene=scene)
        images, labels = batch_of(samples, net), torch.tensor([sample.label for sample in samples])
        matrices = attention_matrices(net, images[:1])
        rank = torch.linalg.matrix_rank(matrices[0][0], rtol=1e-5).item()
        sums = "  ".join(f"{matrix.sum(2).mean():7.1e}" for matrix in matrices[:3])
        off = [block.attn for stage in net.stages for block in stage.blocks]
        figures = [accuracy(net, images, labels)]
        for layers in (off, off[:-1]):
            with switched_off(*layers):
                figures.append(accuracy(net, images, labels))
        name = f"{net.default_cfg['architecture']}.{net.default_cfg['tag']}"
        print(f"{name:<21}{scene:<6}{rank:>13}  {sums}  {figures[0]:>6.1f}  {figures[1]:>14.1f}  {figures[2]:>14.1f}")
    print("On shapes, convolutions and the softmax of stage 4 do the work; on tiles, the attentions do.")
    left, top, right, bottom = samples[0].box
    row = attention_row(alive, images[0], stage=2, query=(int(top + bottom) // 16, int(left + right) // 16))
    try:
        plot_attention_row(row, samples[0].image, out / "attention.png", "soft_plus_pico.tiles, stage 2")
    except ModuleNotFoundError:
        print("A picture of where the tile looks needs matplotlib; pip install 'soft_vit[analysis]' brings it.")
    else:
        print(f"Written: {out / 'attention.png'}, where the tile that is meant looks")


def compare_inverses() -> None:
    """Every layer inverts A. How well this works depends on how different the bottleneck tokens are.

    The released weights were trained with Newton's iteration V <- 2 V - V P V, P = A + 0.01 I. After 20 steps it has
    inverted the large eigenvalues of P but not the small ones: if tokens are alike, it is a filter of the spectrum, not
    the inverse, and weights trained with the filter need it. For training from scratch, inverse="cholesky" is exact and
    faster. Below: relative errors against inverse="eigh" in double precision.
    """
    generator = torch.Generator().manual_seed(0)
    print("spread of 49 tokens  condition of P  Newton, 20  Newton, 40  Cholesky   ||I - P V|| / sqrt(M)")
    for spread in (1.0, 0.3, 0.1, 0.03):
        points = spread * torch.randn(1, 49, 32, generator=generator)
        a = self_gaussian_kernel(points)
        eye = torch.eye(49)
        exact = eigh_inverse(a.double())
        found = {
            "Newton, 20": newton_inverse(a),
            "Newton, 40": newton_inverse(a, iters=40),
            "Cholesky": cholesky_solve(a, eye[None]),
        }
        errors = [torch.linalg.norm(v.double() - exact) / torch.linalg.norm(exact) for v in found.values()]
        condition = torch.linalg.cond(a.double()[0] + 0.01 * eye).item()
        figures = "  ".join(f"{error.item():<10.1e}" for error in errors)
        print(f"{spread:<19}  {condition:<14.1f}  {figures} {newton_residual(a).item():.2f}")


def fine_tune(steps: int) -> nn.Module:
    """A different question for the trained model, learned in a few steps: is the outline of the shape curved?"""

    def labels_of(samples: Sequence) -> Tensor:
        return torch.tensor([CLASSES[sample.label] in CURVED for sample in samples]).long()

    train, test = ShapeImages(steps * 32, split="train"), ShapeImages(200, split="test")
    results = {}
    for start, pretrained in (("random weights", False), ("soft_pico.shapes", True)):
        torch.manual_seed(0)
        model = timm.create_model("soft_pico.shapes", pretrained=pretrained, num_classes=2)
        test_images, test_labels = batch_of(test, model), labels_of(test)
        # The model tells which parameters get no weight decay: norms, biases, position embeddings.
        optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.02)
        model.train()
        for step in range(steps):
            samples = [train[index] for index in range(32 * step, 32 * step + 32)]
            loss = nn.functional.cross_entropy(model(batch_of(samples, model)), labels_of(samples))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results[start] = (loss.item(), accuracy(model, test_images, test_labels))
    print(f"After {steps} steps of 32 images, with 200 test images (always 'no' is right in 60 %):")
    for start, (loss, right) in results.items():
        print(f"  from {start}: last loss {loss:.3f}, accuracy {right:.1f} %")
    return model.eval()


def make_a_backbone() -> None:
    """The backbone of a detector: maps at four strides, for images of any size, with a limit on bottleneck tokens."""
    backbone = timm.create_model("soft_pico", pretrained=True, features_only=True, max_bottleneck=(7, 7)).eval()
    print(f"channels {backbone.feature_info.channels()}, strides {backbone.feature_info.reduction()}")
    with torch.inference_mode():
        for feature in backbone(torch.randn(1, 3, 200, 331)):
            print(f"  {tuple(feature.shape)}")


def count_flops() -> None:
    """FLOPs are counted from the operations that run, on the meta device, which computes nothing.

    The released form takes more bottleneck tokens on larger maps, so its cost is not linear; a limit makes it linear.
    """
    print("FLOPs (G) of the tiny pyramid     224    448     896")
    rows = {
        "softmax in every stage": ("softmax_pyramid_tiny", {}),
        "SOFT as released": ("soft_tiny", {}),
        "SOFT, max_bottleneck=(7, 7)": ("soft_tiny", {"max_bottleneck": (7, 7)}),
    }
    for name, (model_name, options) in rows.items():
        figures = []
        for size in (224, 448, 896):
            with torch.device("meta"):
                model = timm.create_model(model_name, img_size=size, **options)
            figures.append(count_complexity(model, (1, 3, size, size)).macs / 1e9)
        print(f"{name:<30} {figures[0]:>6.1f} {figures[1]:>6.1f} {figures[2]:>7.1f}")


def save_and_export(model: nn.Module, out: Path) -> None:
    """Weights for timm, and a program that runs without this package."""
    weights = out / "curved.safetensors"
    save_file(model.state_dict(), weights)
    again = timm.create_model(
        "soft_pico.shapes", pretrained=True, num_classes=2, pretrained_cfg_overlay=dict(file=weights, num_classes=2)
    ).eval()
    image = torch.randn(3, 3, 64, 64)
    with torch.inference_mode():
        expected = model(image)
        print(f"{weights}: loaded again, the logits differ by {(again(image) - expected).abs().max():.1e}.")

    # BatchNorm is folded into the convolution before it; dimension 0, the batch, stays free.
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(fold_batch_norm(model), (image,), dynamic_shapes={"x": {0: batch}})
    file = out / "curved.pt2"
    torch.export.save(program, file)
    larger = torch.randn(5, 3, 64, 64)
    with torch.inference_mode():
        difference = (torch.export.load(file).module()(larger) - model(larger)).abs().max()
    print(f"{file}: on another batch size, the logits differ by {difference:.1e}.")
    print("tools/export.py writes ONNX as well, and int8.")


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tutorial"), metavar="FOLDER", help="for pictures and weights")
    parser.add_argument("--steps", type=int, default=30, help="steps of fine-tuning (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error(f"--steps is {args.steps}; take at least one.")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    show(1, "A model, and its bottleneck tokens", look_at_a_model)
    model = timm.create_model("soft_pico", pretrained=True).eval()
    show(2, "Trained weights, offline", predict, model, args.out)
    show(3, "What the attention does", look_at_attention, model, args.out)
    show(4, "The inverse: Newton, Cholesky, and the exact one", compare_inverses)
    tuned = show(5, "Fine-tuning", fine_tune, args.steps)
    show(6, "A backbone for a detector", make_a_backbone)
    show(7, "What it costs, against softmax", count_flops)
    show(8, "Saving and exporting", save_and_export, tuned, args.out)


if __name__ == "__main__":
    main()
