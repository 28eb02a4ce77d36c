"""Give a tour of the package on a CPU, without downloads. Read this file along with its output.

python tools/tutorial.py --out tutorial
"""

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

from soft_vit.cli import ArgumentParser, command_line
from soft_vit.data import CLASSES, ShapeImages, normalised_batch
from soft_vit.ops import cholesky_solve, eigh_inverse, newton_inverse, self_gaussian_kernel
from soft_vit.ops.soft.newton import newton_residual
from soft_vit.probe.attentions import switched_off
from soft_vit.probe.complexity import count_complexity
from soft_vit.probe.matrix import watch_attention
from soft_vit.probe.view import attention_row, plot_attention_row
from soft_vit.text_tables import markdown_table

CURVED = ("circle", "ring", "crescent", "heart")


def show(number: int, title: str, part: Callable, *args: Any) -> Any:
    """Print the title and the docstring of a part, and run it."""
    print(f"\n{number}. {title}\n{'-' * (len(title) + 3)}\n{getdoc(part)}\n")
    return part(*args)


def batch_of(samples: Sequence, model: nn.Module) -> Tensor:
    """Return generated images `[B, 3, H, W]`, normalised with the model's mean and std."""
    return normalised_batch(samples, model.pretrained_cfg["mean"], model.pretrained_cfg["std"])


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return top-1 in percent."""
    with torch.inference_mode():
        return 100 * (model.eval()(images).argmax(1) == labels).float().mean().item()


def look_at_a_model() -> None:
    """A pyramid of four stages at strides 4, 8, 16 and 32, with softmax-free attention in the first three.

    Softmax attention compares each of N tokens with all others. SOFT compares them with M bottleneck tokens, one for
    each window of the map, and the bottleneck tokens with each other: the kernels K1 (N x M) and A (M x M) replace a
    matrix of N x N.
    """
    model = timm.create_model("soft_tiny", num_classes=10).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"soft_tiny has {parameters / 1e6:.2f} M parameters.")
    with torch.inference_mode():
        maps = model.forward_intermediates(torch.randn(1, 3, 224, 224), intermediates_only=True)
    rows = []
    for number, (stage, feature) in enumerate(zip(model.stages[:3], maps, strict=False), 1):
        height, width = feature.shape[-2:]
        tokens, window = height * width, stage.blocks[0].attn.sr_ratio
        few = (height // window) * (width // window)
        rows.append([number, f"{height} x {width}", tokens, window, few, tokens**2, 2 * tokens * few + few * few])
    header = ["stage", "map", "tokens N", "window", "bottleneck tokens M", "N x N", "2 N x M + M x M"]
    print(markdown_table(header, rows))


def predict(model: nn.Module, out: Path) -> None:
    """`pretrained=True` loads soft_pico.shapes from the package itself, so this works offline."""
    samples = list(ShapeImages(200, split="test"))
    labels = torch.tensor([sample.label for sample in samples])
    images = batch_of(samples, model)
    print(f"soft_pico.shapes was trained on generated images of: {', '.join(CLASSES)}.")
    print(f"Top-1 on 200 test images: {accuracy(model, images, labels):.1f} %.")
    with torch.inference_mode():
        scores = model(images[:1]).softmax(1)[0]
    best = scores.topk(3)
    names = [CLASSES[index] for index in best.indices]
    print("The first one: " + ", ".join(f"{name} {100 * p:.1f} %" for name, p in zip(names, best.values, strict=True)))
    Image.fromarray(samples[0].image).save(out / "shape.png")
    print(f"Written: {out / 'shape.png'}")


def attention_matrices(model: nn.Module, image: Tensor) -> list[Tensor]:
    """Return the matrix `[heads, N, N]` of the first layer of each stage, which the model itself never computes."""
    matrices = []
    with ExitStack() as stack, torch.inference_mode():
        for stage in model.stages:
            stack.enter_context(watch_attention(stage.blocks[0].attn, matrices.append))
        model(image)
    return [matrix[0] for matrix in matrices]


def look_at_attention(model: nn.Module, out: Path) -> None:
    """How strong attention is, what it contributes, and where it looks.

    The rank of a matrix is at most the number of bottleneck tokens, which is 4 in each stage at 64 pixels. Without
    softmax, the rows of SOFT do not sum to 1. The released form makes bottleneck tokens by convolution, LayerNorm and
    GELU. Before training they are far from the queries, where the Gaussian kernel is small, and after a short training
    they still are. soft_plus scales both to the same size and divides each row by its sum, unless that is close to 0,
    so a token may attend to nothing. soft_plus_pico.tiles is trained on a question that needs several parts of the
    image: the right colour of the tile whose left colour is that of the tile with a white half.
    """
    alive = timm.create_model("soft_plus_pico.tiles", pretrained=True).eval()
    rows = []
    for net, scene in ((model, "shape"), (alive, "tiles")):
        samples = list(ShapeImages(100, split="test", scene=scene))
        images, labels = batch_of(samples, net), torch.tensor([sample.label for sample in samples])
        matrices = attention_matrices(net, images[:1])
        rank = torch.linalg.matrix_rank(matrices[0][0], rtol=1e-5).item()
        sums = [f"{matrix.sum(2).mean():.1e}" for matrix in matrices[:3]]
        layers = [block.attn for stage in net.stages for block in stage.blocks]
        figures = [accuracy(net, images, labels)]
        for off in (layers, layers[:-1]):
            with switched_off(*off):
                figures.append(accuracy(net, images, labels))
        name = f"{net.default_cfg['architecture']}.{net.default_cfg['tag']}"
        rows.append([name, rank, *sums, *(f"{figure:.1f}" for figure in figures)])
    header = ["model", "rank in stage 1", *(f"mean row sum in stage {stage}" for stage in (1, 2, 3))]
    header += ["top-1 %", "with attentions off", "with stages 1 to 3 off"]
    print(markdown_table(header, rows))
    print("On shapes, convolutions and the softmax of stage 4 do the work. On tiles, the attentions do.")
    left, top, right, bottom = samples[0].box
    row = attention_row(alive, images[0], stage=2, query=(int(top + bottom) // 16, int(left + right) // 16))
    try:
        plot_attention_row(row, samples[0].image, out / "attention.png")
    except ModuleNotFoundError:
        print("The picture of where the tile looks needs matplotlib: pip install 'soft_vit[analysis]'.")
    else:
        print(f"Written: {out / 'attention.png'}, where the tile in question looks")


def compare_inverses() -> None:
    """Every layer inverts A. How well this works depends on how different the bottleneck tokens are.

    The released weights were trained with Newton's iteration V <- 2 V - V P V, where P = A + 0.01 I. After 20 steps it
    has inverted the large eigenvalues of P but not the small ones. If tokens are alike, the result is a filter of the
    spectrum and not the inverse, and weights trained with this filter need it. For training from scratch,
    inverse="cholesky" is exact and faster. The table shows relative errors against inverse="eigh" in double precision.
    """
    generator, rows = torch.Generator().manual_seed(0), []
    for spread in (1.0, 0.3, 0.1, 0.03):
        points = spread * torch.randn(1, 49, 32, generator=generator)
        a = self_gaussian_kernel(points)
        eye = torch.eye(49)
        exact = eigh_inverse(a.double())
        found = [newton_inverse(a), newton_inverse(a, iters=40), cholesky_solve(a, eye[None])]
        errors = [torch.linalg.norm(v.double() - exact) / torch.linalg.norm(exact) for v in found]
        condition = torch.linalg.cond(a.double()[0] + 0.01 * eye)
        figures = [f"{error:.1e}" for error in errors]
        rows.append([spread, f"{condition:.1f}", *figures, f"{newton_residual(a).item():.2f}"])
    header = ["spread of 49 tokens", "condition of P", "Newton, 20 steps", "Newton, 40 steps", "Cholesky"]
    print(markdown_table([*header, "||I - P V|| / sqrt(M)"], rows))


def fine_tune(steps: int) -> nn.Module:
    """The trained model learns another question in a few steps: is the outline of the shape curved?"""

    def labels_of(samples: Sequence) -> Tensor:
        return torch.tensor([CLASSES[sample.label] in CURVED for sample in samples]).long()

    train, test = list(ShapeImages(steps * 32, split="train")), list(ShapeImages(200, split="test"))
    results = {}
    for start, pretrained in (("random weights", False), ("soft_pico.shapes", True)):
        torch.manual_seed(0)
        model = timm.create_model("soft_pico.shapes", pretrained=pretrained, num_classes=2)
        test_images, test_labels = batch_of(test, model), labels_of(test)
        # timm asks the model for parameters without weight decay: norms, biases, position embeddings.
        optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.02)
        model.train()
        for step in range(steps):
            samples = train[32 * step : 32 * step + 32]
            loss = nn.functional.cross_entropy(model(batch_of(samples, model)), labels_of(samples))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results[start] = (loss.item(), accuracy(model, test_images, test_labels))
    print(f"After {steps} steps of 32 images, with 200 test images (the answer 'no' is right for 60 %):")
    for start, (loss, right) in results.items():
        print(f"  from {start}: last loss {loss:.3f}, accuracy {right:.1f} %")
    return model.eval()


def make_a_backbone() -> None:
    """Maps at four strides for a detector, from images of any size, with a bound on the number of bottleneck tokens."""
    backbone = timm.create_model("soft_pico", pretrained=True, features_only=True, max_bottleneck=(7, 7)).eval()
    print(f"channels {backbone.feature_info.channels()}, strides {backbone.feature_info.reduction()}")
    with torch.inference_mode():
        for feature in backbone(torch.randn(1, 3, 200, 331)):
            print(f"  {tuple(feature.shape)}")


def count_flops() -> None:
    """FLOPs are counted from the operations that run, on the meta device, which computes nothing.

    The released form has more bottleneck tokens on larger maps, so its cost is not linear. A bound makes it linear.
    """
    models = {
        "softmax in every stage": ("softmax_pyramid_tiny", {}),
        "SOFT as released": ("soft_tiny", {}),
        "SOFT, max_bottleneck=(7, 7)": ("soft_tiny", {"max_bottleneck": (7, 7)}),
    }
    sizes, rows = (224, 448, 896), []
    for name, (model_name, options) in models.items():
        row = [name]
        for size in sizes:
            with torch.device("meta"):
                model = timm.create_model(model_name, img_size=size, **options)
            row.append(f"{count_complexity(model, (1, 3, size, size)).macs / 1e9:.1f}")
        rows.append(row)
    print(markdown_table(["FLOPs (G) of the tiny pyramid", *sizes], rows))


def save(model: nn.Module, out: Path) -> None:
    """Saved weights are loaded into a new model by timm.create_model."""
    weights = out / "curved.safetensors"
    save_file(model.state_dict(), weights)
    again = timm.create_model(
        "soft_pico.shapes", pretrained=True, num_classes=2, pretrained_cfg_overlay=dict(file=weights, num_classes=2)
    ).eval()
    image = torch.randn(3, 3, 64, 64)
    with torch.inference_mode():
        expected = model(image)
        print(f"{weights}: loaded again, the logits differ by {(again(image) - expected).abs().max():.1e}.")
    print("tools/export.py writes ONNX and torch.export, and int8.")


@command_line
def main(argv: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("tutorial"), metavar="FOLDER", help="for pictures and weights")
    parser.add_argument("--steps", type=int, default=30, help="steps of fine-tuning")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    show(1, "A model, and its bottleneck tokens", look_at_a_model)
    model = timm.create_model("soft_pico", pretrained=True).eval()
    show(2, "Trained weights, offline", predict, model, args.out)
    show(3, "What the attention does", look_at_attention, model, args.out)
    show(4, "The inverse: Newton and Cholesky", compare_inverses)
    tuned = show(5, "Fine-tuning", fine_tune, args.steps)
    show(6, "A backbone for a detector", make_a_backbone)
    show(7, "Cost, compared with softmax", count_flops)
    show(8, "Saving", save, tuned, args.out)


if __name__ == "__main__":
    main()
