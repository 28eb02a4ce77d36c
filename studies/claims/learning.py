"""Claims about learning, checked on small models that are trained on tasks of the gym.

All attentions train alike on a task: three pre-norm blocks of width 64, batches of 16, one learning rate, which is
chosen for softmax attention. Scores are accuracies in % over the seeds. A difference counts if the ranges do not
overlap.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from soft_vit.layers import ATTENTIONS
from soft_vit.probe.matrix import attention_matrix, watch_attention
from soft_vit.probe.spectrum import cumulative_singular_values
from studies.claims.matrices import SOFT, SOFT_NORM
from studies.claims.table import Finding, claim, share, verdict
from studies.figures import over_seeds
from studies.gym import TASKS, Task
from studies.gym.training import GymModel, Run, test, tests, training_steps

SEEDS = (0, 1)
# Steps and learning rate with which softmax attention learns each task in about a minute.
SCHEDULES = {"recall": (200, 5e-3), "rank": (100, 5e-3), "listops": (600, 3e-3)}
TASK_OPTIONS = {"recall": dict(num_tokens=36, difficulty=6), "rank": dict(num_tokens=36)}
TASK_OPTIONS["listops"] = dict(num_tokens=128, difficulty=3)
OTHERS = ("nystrom", "linformer", "performer", "linear")

Scores = dict[str, list[float]]
"""The accuracies of each contender, one per seed."""


def drawn_task(task: str, **options: Any) -> Task:
    return TASKS[task](**{**TASK_OPTIONS[task], **options})


def schedule(kind: str, task: str, seed: int, **options: Any) -> Run:
    steps, lr = SCHEDULES[task]
    return Run(task, kind, seed, lr, steps, batch_size=16, attention_options=options)


@cache
def trained(kind: str, task: str, seed: int, depth: int = 3, tokens: int = 0, **options: Any) -> tuple[float, GymModel]:
    """Train once, and return the accuracy and the model."""
    torch.manual_seed(seed)
    drawn, run = drawn_task(task, **({"num_tokens": tokens} if tokens else {})), schedule(kind, task, seed, **options)
    model = GymModel(drawn, run, depth=depth)
    return accuracy(model, drawn, run), model


def accuracy(model: nn.Module, task: Task, run: Run) -> float:
    """Train a model, and return its accuracy on test examples."""
    for _ in training_steps(model, task, run):
        pass
    return test(model, tests(task))[0]


def scores(kind: str, task: str, **options: Any) -> list[float]:
    return [trained(kind, task, seed, **options)[0] for seed in SEEDS]


def on_both(*kinds: str, **contenders: tuple[str, dict[str, Any]]) -> dict[str, Scores]:
    """Return the scores on recall and rank of attentions, and of contenders, each an attention with options."""
    every = {**{kind: (kind, {}) for kind in kinds}, **contenders}
    return {
        task: {name: scores(kind, task, **options) for name, (kind, options) in every.items()}
        for task in ("recall", "rank")
    }


def listed(found: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{name} {over_seeds([100 * value for value in values], 0)}" for name, values in found.items())


def listed_by_task(found: Mapping[str, Scores]) -> str:
    text = listed({f"{name} on {task}": values for task, of in found.items() for name, values in of.items()})
    return f"{text[0].upper()}{text[1:]}."


def beats(a: Sequence[float], b: Sequence[float]) -> bool:
    return min(a) > max(b) + 0.01


@claim(3, SOFT)
def dense_kernel() -> Finding:
    """Kernel attention that is not linearised hardly converges in training (depth, length)."""
    sizes = {"3 blocks": {}, "9 blocks": dict(depth=9), "144 tokens": dict(tokens=144)}
    dense, softmax = (
        {name: scores(kind, "recall", **size) for name, size in sizes.items()} for kind in ("gaussian", "softmax")
    )
    text = f"Recall, dense Gaussian kernel: {listed(dense)}; softmax: {listed(softmax)}."
    return Finding(share(beats(softmax[name], dense[name]) for name in sizes), text)


@claim(4, SOFT)
def low_rank() -> Finding:
    """Low rank through bottleneck tokens mends that."""
    found = {
        "dense": scores("gaussian", "recall"),
        "low rank, convolved tokens (as released)": scores("soft", "recall"),
        "low rank, averaged tokens": scores("soft", "recall", sampling="avg"),
    }
    dense, conv, averaged = found.values()
    text = f"Recall: {listed(found)}. See claim 3 for whether there is something to mend."
    return Finding(verdict(beats(conv, dense), beats(averaged, dense)), text)


@claim(6, SOFT)
def sampling() -> Finding:
    """Sampling by convolution is better than average pooling (ImageNet: 79.3 both)."""
    found = on_both(convolution=("soft", dict(sampling="conv")), average=("soft", dict(sampling="avg")))
    return Finding(share(beats(of["convolution"], of["average"]) for of in found.values()), listed_by_task(found))


@claim(7, SOFT)
def number_of_tokens() -> Finding:
    """36, 49, 64, 81 bottleneck tokens give 79.0, 79.3, 79.3, 78.9: a flat optimum."""
    how, sides = dict(tokens=324, sampling="avg"), (2, 6, 7, 8, 9)
    found = {f"{side**2}": scores("soft", "rank", **how, max_bottleneck=side) for side in sides}
    means = [mean(values) for values in list(found.values())[1:]]
    spread = max(max(values) - min(values) for values in found.values())
    text = f"Rank with 324 tokens, averaged bottleneck tokens, by their number: {listed(found)}."
    return Finding(verdict(max(means) - min(means) <= max(spread, 0.02)), text)


@claim(11, f"{SOFT}, Table 2")
def most_accurate() -> Finding:
    """SOFT is the most accurate of the linear attentions.

    Compare on the gym, not on ImageNet.
    """
    found = {kind: [mean(scores(kind, task)) for task in ("recall", "rank")] for kind in ("soft", *OTHERS)}
    text = "Mean over seeds on recall and rank: "
    text += ", ".join(f"{kind} {'/'.join(f'{100 * value:.0f}' for value in values)}" for kind, values in found.items())
    best = mean(found["soft"]) >= max(mean(found[kind]) for kind in OTHERS)
    return Finding(verdict(best), f"{text}. The paper's table needs ImageNet.")


@claim(15, SOFT_NORM)
def long_range() -> Finding:
    """On long-range tasks (LRA) SOFT is ahead of other linear attentions.

    Compare on nested lists of the gym, with 128 tokens.
    """
    found = {kind: scores(kind, "listops") for kind in ("soft", "nystrom", "linformer", "linear")}
    ahead = [beats(found["soft"], found[kind]) for kind in found if kind != "soft"]
    return Finding(share(ahead), f"Nested lists, 128 tokens: {listed(found)}. Only this task of LRA's, small.")


@claim(20, "Performer, arXiv 2009.14794")
def random_features_learn() -> Finding:
    """Random features lose no accuracy."""
    found = on_both("softmax", "performer")
    return Finding(share(not beats(of["softmax"], of["performer"]) for of in found.values()), listed_by_task(found))


@claim(21, "Linformer, arXiv 2006.04768")
def low_rank_of_softmax() -> Finding:
    """Softmax attention is of low rank: 128 of 512 singular values hold nearly all, more so in deeper layers.

    Measure the first quarter of the singular values by layer, in trained models.
    """
    shares = {}
    for task in ("recall", "rank"):
        model = trained("softmax", task, 0)[1].eval()
        inputs = torch.from_numpy(drawn_task(task).sample(np.random.default_rng(5), 8).inputs)
        matrices: list[Tensor] = []
        for block in model.blocks:
            with watch_attention(block.attn, matrices.append), torch.no_grad():
                model(inputs)
        shares[task] = [float(cumulative_singular_values(matrix)[..., 8].mean()) for matrix in matrices]
    text = "Share of the sum in the first 9 of 36 singular values, layers 1, 2, 3: "
    text += ", ".join(f"{task} {'/'.join(f'{value:.2f}' for value in values)}" for task, values in shares.items())
    parts = [part for values in shares.values() for part in (min(values) > 0.9, values[-1] > values[0])]
    return Finding(share(parts), f"{text}.")


@claim(23, "arXiv 2102.03902")
def nystrom() -> Finding:
    """Nystroemformer is deterministic and as good as Performer."""
    torch.manual_seed(0)
    x, changes = torch.randn(1, 64, 64), {}
    for kind in ("nystrom", "performer"):
        module = ATTENTIONS[kind](64, 2, feat_size=(8, 8), sr_ratio=2).eval()
        with torch.no_grad():
            first = module(x, (8, 8))
            if kind == "performer":
                module.redraw()
            changes[kind] = float((module(x, (8, 8)) - first).norm() / first.norm())
    found = on_both("nystrom", "performer")
    worse = any(beats(of["performer"], of["nystrom"]) for of in found.values())
    text = f"The result changes by {changes['nystrom']:.0%} from call to call, Performer's by "
    text += f"{changes['performer']:.0%} when features are redrawn. {listed_by_task(found)}"
    return Finding(verdict(changes["nystrom"] == 0 and not worse, True), text)


@claim(26, "arXiv 2005.00743")
def synthesizers() -> Finding:
    """Dense and random Synthesizers do about as well as dot products, and transfer worse."""
    ways = {way: ("synthesizer", dict(scores=way)) for way in ("dense", "random")}
    found = on_both("softmax", **ways)
    by_content, by_place = (not any(beats(of["softmax"], of[way]) for way in ways) for of in found.values())
    text = "" if by_content or not by_place else " Places can be learned, contents cannot."
    return Finding(share([by_content, by_place]), f"{listed_by_task(found)}{text} Transfer was not tried.")


@claim(27, "Sparse Transformer, arXiv 1904.10509")
def sparse() -> Finding:
    """Local plus atrous attention keeps what tasks need: near dense, far sparse."""
    found = on_both("softmax", "sparse", local=("local", dict(kernel_size=3)), atrous=("atrous", dict(dilation=2)))
    return Finding(share(not beats(of["softmax"], of["sparse"]) for of in found.values()), listed_by_task(found))


class GatedModel(GymModel):
    """The gym's model with two gated units and no feed-forward instead of each block."""

    def __init__(self, task: Task, run: Run) -> None:
        super().__init__(task, run)
        self.blocks = nn.ModuleList(ATTENTIONS["gau"](64, 2, feat_size=task.feat_size) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.pos_embed
        for norm, unit in zip(self.norms, self.blocks, strict=True):
            x = x + unit(norm(x), self.feat_size)
        return self.head(self.norm(x))


@claim(28, "FLASH, arXiv 2202.10447")
def gated_units() -> Finding:
    """One gated attention unit does the work of attention and feed-forward at equal parameters.

    Compare six units with three blocks.
    """
    found, sizes = {}, {}
    for task in ("recall", "rank"):
        values = []
        for seed in SEEDS:
            torch.manual_seed(seed)
            drawn, run = drawn_task(task), schedule("softmax", task, seed)
            model = GatedModel(drawn, run)
            values.append(accuracy(model, drawn, run))
        for body in (trained("softmax", task, 0)[1], model):
            sizes[type(body)] = sum(parameter.numel() for parameter in body.blocks.parameters()) / 1e3
        found[task] = {"blocks": scores("softmax", task), "units": values}
    text = f"{listed_by_task(found)[:-1]}; {sizes[GymModel]:.0f} and {sizes[GatedModel]:.0f} thousand parameters."
    return Finding(share(not beats(of["blocks"], of["units"]) for of in found.values()), text)


@claim(30, "Miller, Attention is off by one, 2023")
def softmax_one() -> Finding:
    """Softmax with one more in the denominator lets a head attend to nothing and tames outliers.

    Compare row sums at very negative scores, and the largest activation after the last block over the deviation.
    """
    sums, peaks = {}, {}
    for kind in ("softmax", "softmax_one"):
        attn = ATTENTIONS[kind](64, 2, feat_size=(8, 8))
        with torch.no_grad():
            # Queries and keys of opposite sign give scores of -200.
            for layer, value in ((attn.q, 6.0), (attn.kv, -6.0)):
                layer.weight.zero_()
                layer.bias.fill_(value)
            sums[kind] = float(attention_matrix(attn, torch.randn(1, 64, 64), (8, 8)).sum(-1).mean())
        peaks[kind] = [_outlier(trained(kind, "recall", seed)[1]) for seed in SEEDS]
    shown = " and ".join(f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})" for values in peaks.values())
    text = f"At scores of about -200 a row sums to {sums['softmax']:.0f} and {sums['softmax_one']:.0f}. Trained on "
    text += f"recall ({listed({kind: scores(kind, 'recall') for kind in peaks})}), the largest activation is {shown} "
    text += "standard deviations. A model this small lacks outliers."
    tames = max(peaks["softmax_one"]) < min(peaks["softmax"])
    return Finding(verdict(tames and sums["softmax_one"] < 1e-3, True), text)


@torch.no_grad()
def _outlier(model: GymModel) -> float:
    inputs = torch.from_numpy(drawn_task("recall").sample(np.random.default_rng(5), 32).inputs)
    x = model.eval().embed(inputs) + model.pos_embed
    for block in model.blocks:
        x = block(x, model.feat_size)
    return float(x.abs().max() / x.std())


@claim(35, "folklore")
def linear_wins() -> Finding:
    """Linear attention sometimes beats softmax on a task (implicit regularisation)."""
    found = on_both("softmax", "linear")
    wins = any(beats(of["linear"], of["softmax"]) for of in found.values())
    return Finding(verdict(wins), listed_by_task(found))


@claim(14, SOFT)
def longer_sequences() -> Finding:
    """Longer sequences at equal cost pay: more tokens, better accuracy."""
    return Finding("not tested", "Needs ImageNet: patches of several sizes at the same FLOPs.")
