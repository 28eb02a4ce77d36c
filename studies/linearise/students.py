"""Teachers, and students that learn from them without labels or heads."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from tqdm import tqdm

from soft_vit.linearise import Backbone, Linearisation, Plan, make_student, neighbour_agreement, tokens_of
from soft_vit.linearise.errors import relative_error
from soft_vit.probe.health import measure_health
from soft_vit.weights.files import write_atomically
from soft_vit.weights.load import load_into
from studies.descent import one_cycle
from studies.gym.study import parse_kind
from studies.gym.task import NOT_ASKED
from studies.linearise.tasks import HELD_OUT, Task

SCALES = (1, 2, 4)
"""Sides of maps at which students are judged, over the side that they see in training."""
# Tokens whose nearest neighbours are compared.
MOST = 1024
RATE = 3e-3

Result = dict[str, Any]
"""Percentages and errors; lists are over `SCALES` or over blocks.

swap, phase1: right answers after the swap and after phase 1. teacher, accuracy: right answers of the teacher and, at
the end, of the student, by the teacher's head. agreement: the share of nearest neighbours, among tokens with a
question, that student and teacher have in common. cosine: of all tokens. softmax: how the blocks that keep it were
chosen. teacher_rank, rank: effective ranks of the matrices of new attentions, 0 without a matrix. swap_error,
phase1_error: of each new attention on the teacher's tokens. block_error: of the tokens after each block at the end, and
of the final ones. Errors are as in `relative_error`.
"""


@dataclass(frozen=True)
class Run:
    """A student of a task's teacher: its kind with options, as `parse_kind` reads it; keep: blocks that keep softmax.

    steps1, steps2, rate1, rate2: steps and learning rates of the two phases. images: number of unlabelled images,
    or all that the task has.
    """

    task: str
    kind: str
    keep: int = 0
    seed: int = 0
    steps1: int = 400
    steps2: int = 1200
    images: int = 4096
    batch_size: int = 8
    rate1: float = 1e-2
    rate2: float = 1e-3


def load_teacher(task: Task, path: Path) -> VisionTransformer:
    """Return the frozen teacher of a task from a file of its weights, which is written after training if it is missing.

    Its features are normalised tokens `[B, P + N, 64]`; its head answers at each.
    """
    torch.manual_seed(0)
    sizes: Any = dict(img_size=task.side * task.patch, patch_size=task.patch, embed_dim=64, depth=task.depth)
    ends: Any = dict(in_chans=task.in_chans, class_token=task.prefix > 0, global_pool="", num_classes=0)
    teacher = VisionTransformer(num_heads=4, mlp_ratio=2, dynamic_img_size=True, **sizes, **ends)
    teacher.head = nn.Linear(64, task.num_answers)
    if task.overlaps:
        side = task.patch
        teacher.patch_embed.proj = nn.Conv2d(task.in_chans, 64, 2 * side, stride=side, padding=side // 2)
    if not path.exists():
        batches = [(side, count) for side, steps, count in task.plan for _ in range(steps)]
        descend = one_cycle(teacher, RATE, len(batches), decay=0.01)
        for step, (side, count) in enumerate(tqdm(batches, desc="teacher", unit="step")):
            images, _, targets = task.sample(step, count, side)
            descend(F.cross_entropy(teacher(images).flatten(0, 1), targets.flatten(), ignore_index=NOT_ASKED))
        write_atomically(path, save(teacher.state_dict()))
    load_into(teacher, path)
    return teacher.eval()


class Judge:
    """Compares students with the teacher of a task on held-out images; what the teacher does is computed once."""

    @torch.no_grad()
    def __init__(self, task: Task, teacher: Any) -> None:
        self.task, self.head, self.teacher = task, teacher.head, Backbone(teacher, (0.5,) * 3, (0.5,) * 3)
        self.samples = [task.sample(HELD_OUT, task.tests // i**2, task.side * i) for i in SCALES]
        self.features = [self.teacher(sample.images) for sample in self.samples]
        own = [self.accuracy(features, i) for i, features in enumerate(self.features)]
        # The probe reads matrices of this package's softmax.
        self.own: Result = {"teacher": own, "teacher_rank": self.ranks(make_student(self.teacher, "softmax"))}

    def accuracy(self, features: Tensor, i: int = 0) -> float:
        """Return the right answers of the teacher's head on features of a sample, in percent."""
        asked = self.samples[i].labels != NOT_ASKED
        right = self.head(features[asked]).argmax(-1) == self.samples[i].labels[asked]
        return 100 * right.float().mean().item()

    def ranks(self, model: nn.Module) -> list[float]:
        """Return the effective rank of each of this package's attentions, as the mean over heads for one image."""
        return [found.rank or 0.0 for found in measure_health(model, [self.samples[0].images[0]]).values()]

    @torch.no_grad()
    def finish(self, student: Any) -> Result:
        """Return what a student does at the end."""
        found: Result = {**self.own, "accuracy": [], "agreement": [], "cosine": [], "rank": self.ranks(student.eval())}
        for i, (sample, own) in enumerate(zip(self.samples, self.features, strict=True)):
            features, asked = student(sample.images), sample.labels != NOT_ASKED
            found["accuracy"].append(self.accuracy(features, i))
            found["agreement"].append(100 * neighbour_agreement(features[asked][:MOST], own[asked][:MOST]))
            found["cosine"].append(F.cosine_similarity(features, own, dim=-1).mean().item())
        images, blocks = self.samples[0].images[:32], range(self.task.depth)
        pairs = zip(tokens_of(student, images, blocks), tokens_of(self.teacher, images, blocks), strict=True)
        return {**found, "block_error": [float(relative_error(new, own)) for new, own in pairs]}


@dataclass
class _Judged(Linearisation):
    """A linearisation that also notes the accuracy after each phase."""

    judge: Any = None

    @torch.no_grad()
    def measure(self, samples: Tensor) -> dict[str, Any]:
        return {**super().measure(samples), "accuracy": self.judge.accuracy(self.student(self.judge.samples[0].images))}


def linearise(run: Run, judge: Judge) -> Result:
    """Train and judge a student. The images of the second phase are those of the first."""
    began, task = time.process_time(), judge.task
    pool = task.sample(run.seed + 10**5, run.images, task.side).images
    steps = run.steps1 + run.steps2
    order = torch.from_numpy(np.random.default_rng(run.seed).integers(len(pool), size=(steps, run.batch_size)))
    sides, rates = (task.side * task.patch,), (run.rate1, run.rate2)
    plan = Plan((run.steps1, run.steps2, 0), sides, run.batch_size, rates, (), trainable="all", seed=run.seed)
    kind, options = parse_kind(run.kind)
    state = _Judged(judge.teacher, kind, plan, options=options, keep_softmax=run.keep, judge=judge)
    state.fit(lambda start: (pool[index] for index in order[start:]), judge.samples[0].images[:32])
    swap, phase1 = state.history["swap"], state.history.get("phase 1", state.history["swap"])
    result = {"swap": swap["accuracy"], "phase1": phase1["accuracy"]}
    result |= {f"{name}_error": list(found["blocks"].values()) for name, found in (("swap", swap), ("phase1", phase1))}
    result |= {"softmax": state.history.get("softmax", {}), "cpu_minutes": (time.process_time() - began) / 60}
    return {**result, **judge.finish(state.student)}
