"""One run from a name and a folder of images to weights and a report."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import cuda, distributed

from soft_vit.linearise.backbone import load_backbone, save_backbone
from soft_vit.linearise.images import UnlabelledImages
from soft_vit.linearise.plan import Plan
from soft_vit.linearise.report import write_report
from soft_vit.linearise.train import Linearisation
from soft_vit.resume.lock import only_run_in
from soft_vit.weights.files import ensure_writable

# Images that are held out, on which errors are measured.
SAMPLES = 32


def linearise(
    teacher: str,
    kind: str,
    images: str | Path,
    out: str | Path,
    plan: Plan | None = None,
    *,
    blocks: Sequence[int] | None = None,
    options: dict[str, Any] | None = None,
    keep_softmax: int = 0,
    workers: int = 0,
    device: str = "cpu",
    command: str = "",
) -> Linearisation:
    """Linearise a teacher with the images of a folder, and write the weights and a report to `out`; return the run.

    teacher: see `load_backbone`. plan, blocks, options, keep_softmax: see `Linearisation`. workers: processes that read
    images. command: shown in the report. The state of the run is in `out/run/checkpoint.pth`, from which the same call
    continues; under torchrun, the processes share each step. Raises ValueError and OSError for mistakes, also for
    an `out` that another process writes to.
    """
    out, plan = Path(out), plan or Plan()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with ExitStack() as stack:
        if "RANK" in os.environ:
            if on_gpu := device.startswith("cuda"):
                device = f"cuda:{os.environ['LOCAL_RANK']}"
                # Where the objects of collectives lie; two processes on one GPU are refused.
                cuda.set_device(device)
            distributed.init_process_group("nccl" if on_gpu else "gloo")
            stack.callback(distributed.destroy_process_group)
        ensure_writable(out / "report.md")
        backbone = load_backbone(teacher).to(device)
        found = UnlabelledImages(images, backbone.mean, backbone.std, plan.seed)
        run = Linearisation(backbone, kind, plan, blocks, options or {}, keep_softmax)
        run.settings["images"] = found.fingerprint()
        found.hold_out(SAMPLES)

        def batches(start: int) -> Any:
            how = {"num_workers": workers, "pin_memory": device.startswith("cuda")}
            return found.batches(run.plan.images, range(start, run.plan.ends[2]), rank, world, **how)

        if rank == 0:
            stack.enter_context(only_run_in(out / "run"))
        run.fit(batches, found.samples(SAMPLES, max(plan.sizes)), out / "run" / "checkpoint.pth")
        if rank == 0:
            save_backbone(run.student, out)
            print(write_report(run, found, out, command))
    return run
