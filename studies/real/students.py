"""Students of the real teacher: what each is, and a run of one."""

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from soft_vit.linearise import Backbone, Linearisation, Plan, UnlabelledImages, make_student, save_backbone
from soft_vit.linearise.plan import Match, Trainable
from soft_vit.linearise.train import resized
from soft_vit.weights.load import load_into
from soft_vit.weights.read import read_checkpoint_file
from studies.gym.study import parse_kind
from studies.real.data import write_photographs
from studies.real.judge import Judge, held_out, photograph_of, probe
from studies.real.teacher import SIZE, compare_with_package, load_teacher

CHECKED, JUDGED, JUDGED_AT_MORE = 8, 32, 4
"""Pictures of each source on which phases are checked, and on which students are judged, at more sizes by fewer."""
SEEDED = ("linear_150", "hedgehog_150", "hedgehog_150_both", "mala_150", "hedgehog_600_all", "hedgehog_600_varied")
"""Students that other seeds repeat."""
# Pictures on which the conversion is compared with the package.
COMPARED = 24
# Side of the solar cells in a probe: at 224 pixels, a student's takes twelve CPU minutes.
PROBE_SIZE = 112


class Student(NamedTuple):
    """A student: its kind with options, as `parse_kind` reads it, and its plan.

    after: the student whose weights it begins with, in place of a first phase. keep: blocks that keep softmax. sizes:
    of `Plan`; phases are checked, and students judged, at the second one. also: sides in pixels at which it is judged
    too. probed: whether a probe reads its features. vary: of `UnlabelledImages`. part: it learns from one photograph in
    so many, with all of its tiles. match, trainable: of `Plan`. hidden: share of patches that it does not see while it
    learns tokens, as in Wei and Chellappa, arXiv 2504.00037.
    """

    kind: str = "linear"
    steps: tuple[int, int, int] = (150, 0, 0)
    lr: tuple[float, float] = (1e-3, 3e-5)
    intermediates: tuple[int, ...] = ()
    after: str = ""
    keep: int = 0
    sizes: tuple[int, ...] = (112,)
    also: tuple[int, ...] = ()
    probed: bool = False
    batch_size: int = 16
    vary: bool = False
    part: int = 1
    match: Match = "outputs"
    trainable: Trainable = "all"
    hidden: float = 0.0
    seed: int = 0


def second(after: str, steps: tuple[int, int], lr: float, blocks: tuple[int, ...] = (), **changes: Any) -> Student:
    """Return a student that begins after another's first phase. steps: of the other phases. blocks: `intermediates`."""
    changes |= {"steps": (0, *steps), "lr": (1e-3, lr), "intermediates": blocks, "after": after}
    return STUDENTS[after]._replace(**changes)


SHORT, MIDDLE, EVERY = (150, 0), (3, 7), tuple(range(11))

KINDS = ("linear", "hedgehog", "mala", "focused", "polaformer", "rala", "agent", "nystrom")
STUDENTS = {f"{kind}_150": Student(kind) for kind in KINDS}
STUDENTS |= {f"{kind}_150_both": Student(kind, match="both") for kind in ("linear", "hedgehog", "focused")}
STUDENTS |= {f"{kind}_150_conv": Student(f"{kind}:qk_conv=True") for kind in KINDS[:2]}
STUDENTS |= {
    "hedgehog_150_weights": Student("hedgehog", match="weights"),
    "linear_150_norm": Student("linear:key_norm=instance"),
    "hedgehog_150_3e-3": Student("hedgehog", lr=(3e-3, 3e-5)),
    "hedgehog_300": Student("hedgehog", (300, 0, 0)),
    "hedgehog_450_varied": Student("hedgehog", (450, 0, 0), vary=True),
}
# The second phase after the first one's 150 steps: rates, and the tokens of blocks in the middle.
STUDENTS["hedgehog_150_3e-5"] = second("hedgehog_150", SHORT, 3e-5)
STUDENTS |= {f"linear_150_{lr}": second("linear_150", SHORT, float(lr)) for lr in ("3e-4", "1e-4")}
STUDENTS |= {f"hedgehog_150_{lr}_all": second("hedgehog_150", SHORT, float(lr), EVERY) for lr in ("1e-4", "3e-5")}
STUDENTS |= {f"{kind}_150_1e-4_middle": second(f"{kind}_150", SHORT, 1e-4, MIDDLE) for kind in KINDS[:2]}
# What more pictures would bring, by half and a quarter of them; and weights of attentions, besides their outputs.
LONGER: dict[str, dict[str, Any]] = {"half": {"part": 2}, "quarter": {"part": 4}, "both": {"match": "both"}}
STUDENTS |= {f"hedgehog_450_{name}": STUDENTS["hedgehog_450_varied"]._replace(**LONGER[name]) for name in LONGER}
STUDENTS |= {f"hedgehog_{n}_both": STUDENTS["hedgehog_450_both"]._replace(steps=(n, 0, 0)) for n in (1000, 2000)}
# All parameters in the second phase, or the attentions alone, whose rate may be higher.
STUDENTS["hedgehog_600_all"] = second("hedgehog_450_varied", SHORT, 3e-5, EVERY)
ALONE: dict[str, Any] = dict(blocks=EVERY, trainable="attention")
STUDENTS |= {f"hedgehog_600_{lr}": second("hedgehog_450_varied", SHORT, float(lr), **ALONE) for lr in ("3e-4", "3e-5")}
STUDENTS |= {f"hedgehog_600_{of}": second(f"hedgehog_450_{of}", SHORT, 1e-4, **ALONE) for of in ("varied", *LONGER)}
STUDENTS |= {f"hedgehog_600_hidden{n}": STUDENTS["hedgehog_600_varied"]._replace(hidden=n / 100) for n in (25, 50)}
# For the teacher's own size, without softmax and with three blocks of it. Most steps are at half the size.
FULL: dict[str, Any] = dict(blocks=EVERY, sizes=(112, 224), also=(448, 896), probed=True)
STUDENTS |= {
    "hedgehog_224": second("hedgehog_300", (600, 150), 3e-5, **FULL),
    "hedgehog_224_varied": second("hedgehog_450_varied", (1200, 500), 3e-5, **FULL),
    "hedgehog_224_keep3_varied": second("hedgehog_450_varied", (600, 250), 3e-5, keep=3, **FULL),
    "hedgehog_224_keep3": second("hedgehog_300", (300, 75), 3e-5, keep=3, **FULL),
    "hedgehog_224_both": second("hedgehog_1000_both", (1250, 750), 1e-4, **FULL | ALONE),
    "hedgehog_224_attention": second("hedgehog_450_varied", (1200, 500), 1e-4, **FULL | ALONE),
    "hedgehog_224_keep3_both": second("hedgehog_1000_both", (600, 250), 1e-4, keep=3, **FULL | ALONE),
    "hedgehog_224_long": second("hedgehog_2000_both", (2000, 1000), 3e-5, **FULL | ALONE),
    "hedgehog_224_keep3_long": second("hedgehog_2000_both", (1000, 500), 3e-5, keep=3, **FULL | ALONE),
    "hedgehog_224_keep3_attention": second("hedgehog_450_varied", (600, 250), 1e-4, keep=3, **FULL | ALONE),
}
STUDENTS["hedgehog_448_varied"] = STUDENTS["hedgehog_224_varied"]._replace(sizes=(112, 224, 448))
STUDENTS |= {f"{name}_seed{seed}": STUDENTS[name]._replace(seed=seed) for seed, name in product((1, 2), SEEDED)}


def hide_patches(share: float, student: Backbone, args: tuple[Tensor]) -> tuple[Tensor]:
    """Give a share of the patches of images `[B, 3, H, W]` the mean colour in training."""
    seen = torch.rand(len(args[0]), 1, *student.feat_size(args[0])) >= share * student.training
    return (args[0] * F.interpolate(seen.float(), args[0].shape[2:]),)


def load_learned(backbone: Backbone, name: str, root: Path) -> None:
    """Load the weights that the run of a student ended with."""
    load_into(backbone, read_checkpoint_file(root / "runs" / "linearise" / name / "checkpoint.pth")["student"])


def save_student(name: str, root: Path) -> Path:
    """Write a student that has learned, as `tools/linearise.py` does; return its folder."""
    (kind, options), folder = parse_kind(STUDENTS[name].kind), root / "runs" / "students" / name
    student = make_student(load_teacher(root)[0], kind, **options)
    load_learned(student, name, root)
    save_backbone(student, folder)
    return folder


def linearise(name: str, root: Path) -> dict[str, Any]:
    """Train and judge a student, from where its run stands; return its errors by phase and what it keeps."""
    student, state = STUDENTS[name], root / "runs" / "linearise"
    (teacher, decoder), (kind, options) = load_teacher(root), parse_kind(student.kind)
    folder = write_photographs(root) / "train"
    pictures = UnlabelledImages(folder, teacher.mean, teacher.std, student.seed, student.vary)
    photographs = list(dict.fromkeys(photograph_of(entry.name) for entry in pictures.entries))
    learned = set(photographs[:: student.part])
    pictures.entries = [entry for entry in pictures.entries if photograph_of(entry.name) in learned]
    plan = Plan(**{each.name: getattr(student, each.name) for each in fields(Plan) if each.name != "bf16"})
    run = Linearisation(teacher, kind, plan, options=options, keep_softmax=student.keep)
    if student.after:
        load_learned(run.student, student.after, root)
    if student.hidden:
        run.student.register_forward_pre_hook(partial(hide_patches, student.hidden))

    def batches(start: int) -> Iterator[Tensor]:
        # Other pictures than those of the student that it begins with.
        first = sum(STUDENTS[student.after].steps) if student.after else 0
        steps = range(first + start, first + run.plan.ends[2])
        return pictures.batches(lambda step: run.plan.images(step - first), steps)

    size = student.sizes[:2][-1]
    run.fit(batches, torch.cat(held_out(root, teacher, size, CHECKED)), state / name / "checkpoint.pth")
    sizes = {size: JUDGED} | {more: JUDGED_AT_MORE for more in student.also}
    judged = {side: Judge(root, teacher, decoder, side, n).compare(run.student) for side, n in sizes.items()}
    found: dict[str, Any] = {"student": student._asdict(), "history": run.history, "judged": judged}
    if student.probed:
        found["probe"] = probe(root, run.student, PROBE_SIZE)
    if student.probed or student.part > 1:
        parts = {"seen": learned, "left_out": set(photographs) - learned}
        judges = {key: Judge(root, teacher, decoder, size, JUDGED, part) for key, part in parts.items() if part}
        found |= {key: judge.compare(run.student) for key, judge in judges.items()}
    return found


def measure_teacher(name: str, root: Path) -> dict[str, Any]:
    """Return how exactly the teacher was converted, what a probe reads from it, and how it agrees with itself.

    agreement: with its features of the same pictures, mirrored, moved, or enlarged from half the size.
    """
    paths = sorted((write_photographs(root) / "held_out").glob("*.jpg"))
    images = [Image.open(path).convert("RGB") for path in paths[:: len(paths) // COMPARED]]
    teacher, decoder = load_teacher(root)
    found: dict[str, Any] = {"differences": compare_with_package(root, images), "pictures": len(images)}
    found |= {"probe": probe(root, teacher, PROBE_SIZE), "agreement": {}}
    judge = Judge(root, teacher, decoder, SIZE, JUDGED)
    x = judge.images
    changed = {"mirrored": x.flip(3), "moved by 2 pixels": x.roll((2, 2), (2, 3))}
    changed["enlarged"] = resized(resized(x, SIZE // 2), SIZE)
    for change, judge.images in changed.items():
        found["agreement"][change] = judge.compare(teacher)["agreement"]
    return found
