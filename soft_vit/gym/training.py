"""One run of the gym: a task, an attention, a seed."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from soft_vit.gym import TASKS
from soft_vit.gym.task import NOT_ASKED, Task
from soft_vit.layers import PreNormBlock, attention_class

TEST_EXAMPLES = 512
# Seeds of tests and of pilots are apart from those of training, which are small numbers.
TEST_SEED = 10**6
PILOT_SEED = 10**7


@dataclass(frozen=True)
class Run:
    """What is trained: steps of batch_size examples by one-cycle AdamW, in `depth` blocks of width dim."""

    task: str
    attention: str
    seed: int
    lr: float
    steps: int = 400
    batch_size: int = 32
    dim: int = 64
    num_heads: int = 2
    depth: int = 3
    task_options: dict[str, Any] = field(default_factory=dict)
    attention_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """How a run went: accuracy at the tokens that are asked, in [0, 1], after each of the steps."""

    run: dict[str, Any]
    ceiling: float
    steps: list[int]
    accuracy: list[float]
    seconds: float

    @property
    def final(self) -> float:
        return self.accuracy[-1]

    def steps_to(self, accuracy: float) -> int | None:
        """The first step from which the accuracy was reached, or None."""
        return next((step for step, value in zip(self.steps, self.accuracy, strict=True) if value >= accuracy), None)


def sincos_positions(feat_size: tuple[int, ...], dim: int) -> Tensor:
    """Sines and cosines of the coordinates of tokens on a map or along a sequence: `[1, N, dim]`."""
    axes = torch.meshgrid(*(torch.arange(size, dtype=torch.float32) for size in feat_size), indexing="ij")
    count = dim // (2 * len(axes))
    # Long waves for long axes.
    frequency = (4.0 * max(feat_size)) ** -(torch.arange(count) / count)
    angles = [axis.flatten()[:, None] * frequency for axis in axes]
    return torch.cat([f(angle) for angle in angles for f in (torch.sin, torch.cos)], dim=1)[None]


class GymModel(nn.Module):
    """Tokens `[B, N, F]` through pre-norm blocks of one width to logits `[B, N, K]`; attention alone mixes tokens."""

    def __init__(self, task: Task, run: Run) -> None:
        super().__init__()
        self.feat_size = task.feat_size
        self.embed = nn.Linear(task.num_features, run.dim)
        self.pos_embed = nn.Parameter(0.3 * sincos_positions(task.feat_size, run.dim))
        attention: Any = attention_class(run.attention)
        self.blocks = nn.ModuleList(
            PreNormBlock(
                run.dim,
                attention(run.dim, run.num_heads, feat_size=task.feat_size, sr_ratio=2, **run.attention_options),
            )
            for _ in range(run.depth)
        )
        self.norm = nn.LayerNorm(run.dim)
        self.head = nn.Linear(run.dim, task.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.pos_embed
        for block in self.blocks:
            x = block(x, self.feat_size)
        return self.head(self.norm(x))


def train(run: Run, evaluations: int = 10) -> Result:
    """Train and test; the same run gives the same result on one machine."""
    began = time.monotonic()
    task = TASKS[run.task](**run.task_options)
    torch.manual_seed(run.seed)
    model = GymModel(task, run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, run.lr, total_steps=run.steps, pct_start=0.1)
    rng = np.random.default_rng(run.seed)
    result = Result(asdict(run), task.ceiling, [], [], 0.0)
    for step in range(1, run.steps + 1):
        inputs, labels = map(torch.from_numpy, task.sample(rng, run.batch_size))
        loss = F.cross_entropy(model.train()(inputs).flatten(0, 1), labels.flatten(), ignore_index=NOT_ASKED)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, run.steps // evaluations) == 0 or step == run.steps:
            result.steps.append(step)
            result.accuracy.append(test(model, task))
    result.seconds = time.monotonic() - began
    return result


@torch.no_grad()
def test(model: nn.Module, task: Task) -> float:
    """Accuracy on examples that no training sees."""
    rng, right, asked = np.random.default_rng(TEST_SEED), 0, 0
    model.eval()
    for _ in range(TEST_EXAMPLES // 64):
        inputs, labels = map(torch.from_numpy, task.sample(rng, 64))
        is_asked = labels != NOT_ASKED
        right += int((model(inputs).argmax(-1) == labels)[is_asked].sum())
        asked += int(is_asked.sum())
    return right / asked


def save(result: Result, path: Path) -> None:
    """Write a result whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(result)))
    part.replace(path)


def load(path: Path) -> Result:
    return Result(**json.loads(path.read_text()))
