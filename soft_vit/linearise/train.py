"""Linearise a frozen ViT without labels: attention outputs, then final tokens, then these at larger sizes.

Letters: B batch, P prefix tokens, N tokens of a map, C channels, H x W the image.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from soft_vit.linearise.backbone import Backbone, make_student
from soft_vit.linearise.errors import attention_errors, neighbour_agreement, token_errors, tokens_of, transfer_errors
from soft_vit.linearise.plan import Match, Plan, Trainable
from soft_vit.ops.numerics import check_choice
from soft_vit.resume.position import seed_step
from soft_vit.resume.ranks import from_main, rank_and_count
from soft_vit.resume.stop import Stop, listening
from soft_vit.weights.files import write_atomically
from soft_vit.weights.load import load_into
from soft_vit.weights.read import NotedWeights, read_checkpoint_file
from soft_vit.weights.spec import ModelSpec

# Random choices of blocks that the chosen ones are compared with.
RANDOM_CHOICES = 4
# Checks on held-out images within a phase; from half of them on, a phase that has made the error worse is stopped.
CHECKS = 8
# Steps between two checkpoints.
SAVE_EVERY = 200
# Share of the average of weights that a step keeps.
MOMENTUM = 0.9


def resized(x: Tensor, size: int) -> Tensor:
    """Return images `[B, 3, H, W]` whose shorter side has size pixels."""
    shape = [side * size // min(x.shape[-2:]) for side in x.shape[-2:]]
    return x if shape == list(x.shape[-2:]) else F.interpolate(x, shape, mode="bicubic", antialias=True)


def _copy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in weights.items()}


class _Losses(nn.Module):
    """The losses of both phases as one forward, which DistributedDataParallel takes."""

    def __init__(self, run: "Linearisation") -> None:
        super().__init__()
        self.student = run.student
        by_weights = run.plan.match != "outputs" and run.step < run.plan.ends[0]
        # Of this package, so that its weights can be read.
        twin = make_student(run.teacher, "softmax", run.blocks).requires_grad_(False).eval() if by_weights else None
        # In a tuple, so that they are not parts of this module.
        self._fixed = run.teacher, twin, run.blocks, run.plan

    def forward(self, x: Tensor, in_first: bool) -> Tensor:
        teacher, twin, blocks, plan = self._fixed
        if in_first:
            errors = transfer_errors(self.student, twin or teacher, x, blocks, weights=twin is not None)
            return errors[-1 if plan.match == "weights" else slice(None)].sum()
        with torch.no_grad():
            expected = tokens_of(teacher, x, plan.intermediates)
        prefix = expected[-1].shape[1] - math.prod(teacher.feat_size(x))
        found = tokens_of(self.student, x, plan.intermediates)
        return torch.stack([token_errors(a, b, prefix) for a, b in zip(found, expected, strict=True)]).mean()


@dataclass
class Linearisation:
    """A run: the student, how far it is, and the errors that were measured on the way.

    teacher: becomes frozen. kind, blocks, options: see `soft_vit.swap_attention`; options are of the attention type.
    keep_softmax: number of blocks that get their softmax back after the first phase, see `choose_softmax`.

    >>> run = Linearisation(load_backbone("vit_small_patch14_dinov2.lvd142m"), "linear", Plan(steps=(200, 400, 0)))
    >>> run.fit(lambda start: iter(batches[start:]), samples)
    >>> features = run.student(images)
    """

    teacher: Backbone
    kind: str
    plan: Plan = field(default_factory=Plan)
    blocks: Sequence[int] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    keep_softmax: int = 0
    step: int = 0
    history: dict[str, Any] = field(default_factory=dict)
    """The result of `measure` by phase: swap, phase 1, phase 2, phase 3; and softmax, of `choose_softmax`.

    Of phases also checks, steps with the error on held-out images, and step, that of the lowest one, whose weights
    are kept.
    """
    best: dict[str, Any] = field(default_factory=dict)
    """Of the present phase: its checks, the lowest error with its step and weights, and the average of weights."""

    def __post_init__(self) -> None:
        patch = self.teacher.patch_size
        if any(size < 1 or size % side for size in self.plan.sizes for side in patch):
            raise ValueError(f"size must be a multiple of the patch size {patch[0]}, got {self.plan.sizes}.")
        self.teacher.requires_grad_(False).eval()
        # Weights of the new attentions, alike in all processes.
        with torch.random.fork_rng():
            torch.manual_seed(self.plan.seed)
            self.student = make_student(self.teacher, self.kind, self.blocks, **self.options)
        count = len(self.teacher.layers)
        self.blocks = sorted({block % count for block in (range(count) if self.blocks is None else self.blocks)})
        if not 0 <= self.keep_softmax < len(self.blocks):
            raise ValueError(f"keep_softmax must be from 0 to {len(self.blocks) - 1}, got {self.keep_softmax}.")
        if self.plan.match is None:
            self.plan = replace(self.plan, match="both" if self.kind == "hedgehog" else "outputs")
        check_choice("match", self.plan.match, get_args(Match))
        check_choice("trainable", self.plan.trainable, get_args(Trainable))
        if self.plan.intermediates is None:
            self.plan = replace(self.plan, intermediates=tuple(range(count - 1)))
        if not all(-count <= block < count for block in self.plan.intermediates):
            raise ValueError(f"intermediates must be from 0 to {count - 1}, got {self.plan.intermediates}.")
        if not list(self._attention_parameters()):
            self.plan = replace(self.plan, steps=(0, *self.plan.steps[1:]), trainable="all")
        names = ("kind", "blocks", "options", "keep_softmax")
        self.settings = {name: getattr(self, name) for name in names} | asdict(self.plan)
        self.settings |= {"teacher": self.teacher.source, "processes": rank_and_count()[1]}

    def _attention_parameters(self) -> Iterator[nn.Parameter]:
        return (p for block in self.blocks or () for p in self.student.attention(block).parameters())

    def fit(
        self, batches: Callable[[int], Iterator[Tensor]], samples: Tensor, checkpoint: str | Path | None = None
    ) -> None:
        """Train all phases, from where the checkpoint stands.

        batches: returns the batches `[B, 3, H, W]` of the steps from a given one on, as `Plan.images` says. samples:
        images `[B, 3, H, W]` of the largest size, on which errors are measured; phases at smaller sizes reduce them.
        Checked are the weights of a step and their running average, since the errors of single steps go up and down.
        A phase ends with those of the lowest error, and stops, with a warning, if both have a larger one after half of
        its steps than before the first.
        checkpoint: the file that is written every `SAVE_EVERY` steps; a run that stopped continues from it as if it had
        not. It is also written when an image cannot be read, and after the step in which Ctrl-C or SIGTERM arrives in
        any process, which then ends all of them with code 75.
        Raises ValueError for a checkpoint of another run, and for gradients that are not finite.
        """
        device = next(self.teacher.parameters()).device
        path = None if checkpoint is None else Path(checkpoint)
        # The main process looks for it, because a file that is shared may not be seen everywhere yet.
        exists = from_main(lambda: path is not None and path.is_file())
        optimizer_state = self._load(path) if exists and path is not None else None
        if "swap" not in self.history:
            self.history["swap"] = self.measure(resized(samples, self.plan.sizes[0]))
            # Without a first phase, this is its end.
            self._end_phase(samples)
        optimizer, losses = None, None
        images = batches(self.step)
        rank, stop = rank_and_count()[0], Stop()
        bar = tqdm(total=self.plan.ends[2], initial=self.step, unit="step", disable=rank > 0)
        with bar, listening():
            while self.step < self.plan.ends[2]:
                in_first = self.step < self.plan.ends[0]
                if optimizer is None:
                    optimizer, losses = self._begin(in_first, device)
                    if optimizer_state is not None:
                        optimizer.load_state_dict(optimizer_state)
                        optimizer_state = None
                if not self.best:
                    self._keep(samples, losses, self.step)
                for group in optimizer.param_groups:
                    group["lr"] = self.plan.rate(self.step)
                try:
                    x = next(images).to(device, non_blocking=True)
                except BaseException:
                    # Between two steps, as at an image that cannot be read, nothing is lost.
                    if path is not None:
                        self._save(path, optimizer)
                    raise
                # A run that continues draws what it would have drawn.
                seed_step(self.plan.seed, rank, self.step)
                with torch.autocast(device.type, torch.bfloat16, enabled=self.plan.bf16):
                    loss = losses(x, in_first)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
                if not norm.isfinite():
                    raise ValueError(f"Gradients must be finite, got {norm} at step {self.step}; lower the lr.")
                optimizer.step()
                self.step += 1
                self._average()
                bar.set_postfix_str(f"{x.shape[-1]} px, loss {loss.item():.3f}", refresh=False)
                bar.update()
                if self._check(samples, losses):
                    images = batches(self.step)
                    bar.update(self.step - bar.n)
                if self.step in self.plan.ends:
                    self._end_phase(samples)
                    # The next phase has another learning rate, and the first one other parameters.
                    optimizer = None if self.step == self.plan.ends[0] else optimizer
                asked = stop.is_asked()
                if path is not None and (asked or self.step in self.plan.ends or self.step % SAVE_EVERY == 0):
                    self._save(path, optimizer)
                if asked:
                    stop.leave()

    def _begin(self, in_first: bool, device: torch.device) -> tuple[torch.optim.Optimizer, nn.Module]:
        self.student.train().requires_grad_(not in_first and self.plan.trainable == "all")
        for parameter in self._attention_parameters():
            parameter.requires_grad_()
        trained = [parameter for parameter in self.student.parameters() if parameter.requires_grad]
        losses: nn.Module = _Losses(self)
        if distributed.is_initialized():
            ids = [device.index] if device.type == "cuda" else None
            # Heads, such as a pooling attention, have no part in the loss.
            losses = DistributedDataParallel(losses, device_ids=ids, find_unused_parameters=True)
        return torch.optim.AdamW(trained, lr=self.plan.lr[0], weight_decay=0.0), losses

    def _average(self) -> None:
        """Move the average of this phase's weights towards those of this step, farther in the first steps."""
        share = max(1 - MOMENTUM, 9 / (10 + self.step - self.plan.span(self.step - 1)[0]))
        for name, value in self.student.state_dict().items():
            average = self.best["average"][name]
            average.lerp_(value, share) if value.is_floating_point() else average.copy_(value)

    def _keep(self, samples: Tensor, losses: Any, step: int) -> None:
        """Check the weights and their average in the phase of a step, and keep those of the lowest error."""
        present = _copy(self.student.state_dict())
        checked = [(self._held_out_error(samples, losses, step), present)]
        if "average" in self.best:
            load_into(self.student, self.best["average"])
            checked.append((self._held_out_error(samples, losses, step), self.best["average"]))
            load_into(self.student, present)
        else:
            self.best["average"] = _copy(present)
        # NaN is never the lowest error.
        error, state = min(checked, key=lambda one: (math.isnan(one[0]), one[0]))
        self.best.setdefault("checks", []).append([self.step, error])
        if error < self.best.get("error", math.inf) or "student" not in self.best:
            self.best |= {"error": error, "step": self.step, "student": _copy(state)}

    def _check(self, samples: Tensor, losses: Any) -> bool:
        """Check the error on held-out images, if that is due; return whether to stop the phase.

        The step is then the phase's last.
        """
        start, end = self.plan.span(self.step - 1)
        done, every = self.step - start, max(1, (end - start) // CHECKS)
        if done % every and self.step != end:
            return False
        self._keep(samples, losses, self.step - 1)
        checks = self.best["checks"]
        # Not by NaN.
        if self.step == end or checks[-1][1] <= checks[0][1] or 2 * done < end - start:
            return False
        self.step = end
        return True

    @torch.no_grad()
    def _held_out_error(self, samples: Tensor, losses: Any, step: int) -> float:
        """Return the error on held-out images, of the size that the phase of a step ends with.

        In the first phase, it is what that minimises; in the others, that of the final tokens.
        """
        samples = resized(samples, self.plan.images(self.plan.span(step)[1] - 1)[0])
        if step >= self.plan.ends[0]:
            error = self._error_with((), samples)
        else:
            self.student.eval()
            # Not within DistributedDataParallel, which would wait for gradients.
            error = float(np.mean([getattr(losses, "module", losses)(x, True).item() for x in self._parts(samples)]))
        self.student.train()
        return from_main(lambda: error)

    def _end_phase(self, samples: Tensor) -> None:
        # Phases are compared at one size.
        samples = resized(samples, self.plan.sizes[0])
        for phase, end in enumerate(self.plan.ends, 1):
            if self.step == end and self.plan.steps[phase - 1]:
                began, kept = end - self.plan.steps[phase - 1], self.best["step"]
                load_into(self.student, self.best["student"])
                if kept == began:
                    what = f"Phase {phase} made the error of sample images worse than {self.best['error']:.3f}"
                    warnings.warn(f"{what}; the weights from before it are kept. Lower its lr.", stacklevel=3)
                self.history[f"phase {phase}"] = self.measure(samples) | {"step": kept, "checks": self.best["checks"]}
                self.best = {}
        if self.step == self.plan.ends[0] and self.keep_softmax:
            # All processes compute the choice, since waiting for the main one may exceed the timeout of a group.
            choice = self.choose_softmax(samples)
            self.history["softmax"] = from_main(lambda: choice)
            self._rebuild(self.history["softmax"]["kept"])

    @torch.no_grad()
    def measure(self, samples: Tensor) -> dict[str, Any]:
        """Return the errors on images `[B, 3, H, W]`: of each block's attention, and of the final tokens.

        blocks: `attention_errors` by number. error: `token_errors`. cosine: the mean of the final tokens'. agreement:
        `neighbour_agreement` of the means of each image's tokens. Leaves the student in eval mode.
        """
        assert self.blocks is not None
        self.student.eval()
        found, means = [], []
        for x, (a, b), prefix in self._compared(samples):
            cosine = F.cosine_similarity(a.float(), b.float(), dim=-1).mean()
            of_blocks = attention_errors(self.student, self.teacher, x, self.blocks)
            found.append(torch.stack([token_errors(a, b, prefix), cosine, *of_blocks]))
            means.append(torch.stack([a[:, prefix:].mean(1), b[:, prefix:].mean(1)]))
        error, cosine, *errors = torch.stack(found).mean(0).tolist()
        agreement = neighbour_agreement(*torch.cat(means, dim=1))
        blocks = dict(zip(map(str, self.blocks), errors, strict=True))
        return {"blocks": blocks, "error": error, "cosine": cosine, "agreement": agreement}

    def _parts(self, samples: Tensor) -> Iterator[Tensor]:
        device = next(self.teacher.parameters()).device
        return (x.to(device) for x in samples.tensor_split(-(-len(samples) // self.plan.batch_size)))

    def _compared(self, samples: Tensor) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor], int]]:
        """Yield images in batches, the final tokens of student and teacher, and the number of prefix tokens."""
        for x in self._parts(samples):
            a, b = self.student(x), self.teacher(x)
            yield x, (a, b), b.shape[1] - math.prod(self.teacher.feat_size(x))

    def choose_softmax(self, samples: Tensor) -> dict[str, Any]:
        """Choose the blocks that get their softmax back, one by one: each time the one that lowers the error most.

        The error is `token_errors` on images `[B, 3, H, W]`. Returns the blocks as kept, and by way of choosing, the
        blocks with their error: greedy, first, last and random, the latter's a mean.
        """
        assert self.blocks is not None
        kept: list[int] = []
        for _ in range(self.keep_softmax):
            errors = {b: self._error_with([*kept, b], samples) for b in self.blocks if b not in kept}
            kept.append(min(errors, key=lambda block: errors[block]))
        choices = {"greedy": sorted(kept), "first": self.blocks[: len(kept)], "last": self.blocks[-len(kept) :]}
        found: dict[str, Any] = {name: [blocks, self._error_with(blocks, samples)] for name, blocks in choices.items()}
        rng = np.random.default_rng(self.plan.seed)
        drawn = [rng.choice(self.blocks, len(kept), replace=False).tolist() for _ in range(RANDOM_CHOICES)]
        found["random"] = [[], float(np.mean([self._error_with(blocks, samples) for blocks in drawn]))]
        return {"kept": sorted(kept), **found}

    @torch.no_grad()
    def _error_with(self, kept: Sequence[int], samples: Tensor) -> float:
        with self._restored(kept):
            self.student.eval()
            return float(np.mean([float(token_errors(a, b, prefix)) for _, (a, b), prefix in self._compared(samples)]))

    @contextmanager
    def _restored(self, kept: Sequence[int]) -> Iterator[None]:
        """Give the student the teacher's attention in these blocks within this context."""
        layers, old = self.student.layers, {block: self.student.attention(block) for block in kept}
        try:
            for block in kept:
                setattr(*layers[block], self.teacher.attention(block))
            yield
        finally:
            for block, attention in old.items():
                setattr(*layers[block], attention)

    def _rebuild(self, kept: Sequence[int]) -> None:
        """Give the student the teacher's attention in these blocks for good, and note the swap of the others."""
        trained = self.student
        assert self.blocks is not None
        self.blocks = [block for block in self.blocks if block not in kept]
        self.student = make_student(self.teacher, self.kind, self.blocks, **self.options)
        for block in self.blocks:
            load_into(self.student.attention(block), NotedWeights(trained.attention(block).state_dict(), ModelSpec()))

    def _save(self, path: Path, optimizer: torch.optim.Optimizer | None) -> None:
        if rank_and_count()[0] > 0:
            return
        buffer = io.BytesIO()
        state = {"step": self.step, "history": self.history, "settings": self.settings, "best": self.best}
        state |= {"student": self.student.state_dict(), "optimizer": optimizer and optimizer.state_dict()}
        torch.save(state, buffer)
        write_atomically(path, buffer.getvalue())

    def _load(self, path: Path) -> dict[str, Any] | None:
        """Continue from a checkpoint; return the state of its optimizer."""
        state = read_checkpoint_file(path)
        keys = {"step", "history", "settings", "student", "optimizer"}
        if not keys <= state.keys():
            given = ", ".join(map(str, state))
            raise ValueError(f"{path} must hold {', '.join(sorted(keys))}, got {given}; give another --out.")
        for name, value in self.settings.items():
            # Runs of version 0.3 did not note their images; those of 0.4 learned outputs, then all parameters.
            absent = {"images": value, "match": "outputs", "trainable": "all"}.get(name)
            if (given := state["settings"].get(name, absent)) != value:
                raise ValueError(f"{path} must be of a run with {name}={value}, got {given}; give another --out.")
        self.step, self.history = state["step"], state["history"]
        if "softmax" in self.history:
            self._rebuild(self.history["softmax"]["kept"])
        load_into(self.student, state["student"])
        # Older runs kept no average.
        self.best = state["best"] if "average" in state.get("best", ()) else {}
        return state["optimizer"]
