"""One run of the gym: a task, an attention, a seed."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.layers import PreNormBlock, attention_class
from soft_vit.probe.attentions import attentions, switched_off
from soft_vit.probe.health import probe
from soft_vit.weights.files import write_atomically
from studies.descent import one_cycle
from studies.gym import TASKS
from studies.gym.task import NOT_ASKED, Batch, Task

TEST_EXAMPLES = 512
# Evaluations in a run. All but the last use two batches of test examples; the last uses all of them.
EVALUATIONS = 8
# The seeds of training are small numbers.
TEST_SEED = 10**6


@dataclass(frozen=True)
class Run:
    """The settings of a run: task and attention with their options, schedule, seed."""

    task: str
    attention: str
    seed: int
    lr: float
    steps: int
    batch_size: int = 32
    task_options: dict[str, Any] = field(default_factory=dict)
    attention_options: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The attention with its options, as `parse_kind` reads it, such as soft:sampling=avg."""
        options = ",".join(f"{name}={value}" for name, value in sorted(self.attention_options.items()))
        return f"{self.attention}:{options}" if options else self.attention


@dataclass
class Result:
    """The results of a run.

    accuracy, loss, share: after each of the steps, the accuracy in [0, 1] at tokens with a question, the cross-entropy,
        and the mean share of attentions in their layers' output, see `soft_vit.probe.health`.

    accuracy_off: accuracy at the end with all attentions switched off, or None if it was not measured.
    """

    run: Run
    num_tokens: int
    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    accuracy_off: float | None = None
    cpu_seconds: float = 0.0

    def steps_to(self, accuracy: float) -> int | None:
        """Return the first of the steps with at least this accuracy, or None."""
        return next((step for step, value in zip(self.steps, self.accuracy, strict=True) if value >= accuracy), None)

    def save(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)).encode())

    @staticmethod
    def load(path: Path) -> "Result":
        values = json.loads(path.read_text())
        return Result(**{**values, "run": Run(**values["run"])})


class GymModel(nn.Module):
    """Three pre-norm blocks of width 64: tokens `[B, N, F]` to logits `[B, N, K]`. Only attention mixes tokens."""

    def __init__(self, task: Task, run: Run, dim: int = 64, num_heads: int = 2, depth: int = 3) -> None:
        super().__init__()
        self.feat_size = task.feat_size
        self.embed = nn.Linear(task.num_features, dim)
        # Of about the size of embedded tokens, so that positions count as much as contents from the first step.
        self.pos_embed = nn.Parameter(0.3 * sincos_positions(task.feat_size, dim))
        attention: Any = attention_class(run.attention)
        options = dict(feat_size=task.feat_size, sr_ratio=2, **run.attention_options)
        self.blocks = nn.ModuleList(PreNormBlock(dim, attention(dim, num_heads, **options)) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, task.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.pos_embed
        for block in self.blocks:
            x = block(x, self.feat_size)
        return self.head(self.norm(x))


def sincos_positions(feat_size: tuple[int, ...], dim: int) -> Tensor:
    """Return sines and cosines of the coordinates of tokens on a map or in a sequence: `[1, N, dim]`."""
    axes = torch.meshgrid(*(torch.arange(size, dtype=torch.float32) for size in feat_size), indexing="ij")
    count = dim // (2 * len(axes))
    # The longest wave grows with the longest axis.
    frequency = (4.0 * max(feat_size)) ** -(torch.arange(count) / count)
    angles = [axis.flatten()[:, None] * frequency for axis in axes]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)[None]


def make_model(task: Task, run: Run) -> GymModel:
    """Return the model of a run, initialised with its seed."""
    torch.manual_seed(run.seed)
    return GymModel(task, run)


def training_steps(model: nn.Module, task: Task, run: Run) -> Iterator[int]:
    """Train a model by AdamW with a one-cycle schedule, and yield the number of each step after it."""
    descend = one_cycle(model, run.lr, run.steps, decay=0.01, fused=True)
    rng = np.random.default_rng(run.seed)
    for step in range(1, run.steps + 1):
        inputs, labels = map(torch.from_numpy, task.sample(rng, run.batch_size))
        descend(F.cross_entropy(model.train()(inputs).flatten(0, 1), labels.flatten(), ignore_index=NOT_ASKED))
        yield step


def train(run: Run, evaluations: int = EVALUATIONS) -> Result:
    """Train and test a model. On one machine, the same run gives the same result.

    Raises ValueError for options that the task or the attention rejects.
    """
    began = time.process_time()
    task = TASKS[run.task](**run.task_options)
    model, batches = make_model(task, run), tests(task)
    result = Result(run, task.num_tokens)
    for step in training_steps(model, task, run):
        if step * evaluations // run.steps > (step - 1) * evaluations // run.steps:
            accuracy, loss = test(model, batches if step == run.steps else batches[:2])
            result.steps.append(step)
            result.accuracy.append(accuracy)
            result.loss.append(loss)
            shares = [found.share for found in probe(model, torch.from_numpy(batches[0].inputs[:16])).values()]
            result.share.append(sum(shares) / len(shares))
    with switched_off(*attentions(model).values()):
        result.accuracy_off, _ = test(model, batches)
    result.cpu_seconds = time.process_time() - began
    return result


@torch.no_grad()
def test(model: nn.Module, batches: Iterable[Batch]) -> tuple[float, float]:
    """Return the accuracy in [0, 1] and the mean cross-entropy over the tokens with a question."""
    right, loss, asked = 0, 0.0, 0
    model.eval()
    for batch in batches:
        inputs, labels = map(torch.from_numpy, batch)
        is_asked = labels != NOT_ASKED
        logits = model(inputs)[is_asked]
        right += int((logits.argmax(-1) == labels[is_asked]).sum())
        loss += float(F.cross_entropy(logits, labels[is_asked], reduction="sum"))
        asked += len(logits)
    return right / asked, loss / asked


def tests(task: Task) -> list[Batch]:
    """Return the same `TEST_EXAMPLES` examples in every call. None of them is trained on."""
    rng, held_out = np.random.default_rng(TEST_SEED), task.held_out()
    return [held_out.sample(rng, 64) for _ in range(TEST_EXAMPLES // 64)]
