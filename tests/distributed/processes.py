"""Training in processes of its own that may die, forked from one that has imported everything."""

import gc
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401  each run would import both after the fork
import torch

from soft_vit.engine.resume.read import load_checkpoint_file

ROOT = Path(__file__).parents[2]
CONFIG = str(Path(__file__).with_name("long_run.py"))
TRAIN = str(ROOT / "tools" / "train.py")

# Read when torch is first imported: results are equal bit for bit on one thread of a CPU.
ONE_CPU = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

# The test itself has imported everything. Where it may have used a GPU, no process that is forked from it can.
_context = multiprocessing.get_context("forkserver" if torch.cuda.is_available() else "fork")
if torch.cuda.is_available():
    _context.set_forkserver_preload(["soft_vit.engine", "matplotlib.backends.backend_agg"])


def _train(arguments: Sequence[str], environment: dict[str, str], log: str, preparation: Callable | None) -> None:
    # A group of its own, so that a signal to the group spares whoever tests.
    os.setpgid(0, 0)
    # A collection would write to each object of the test, and so copy its page.
    gc.freeze()
    with open(log, "a") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.update(environment)
    torch.set_num_threads(1)
    from mmengine.config import Config
    from mmengine.runner import runner

    # Half of the time of a short run would go into its layout, and more into describing the machine.
    Config.pretty_text = property(str)
    runner.collect_env = dict
    runner.get_git_hash = str
    if preparation is not None:
        preparation()
    runpy.run_path(TRAIN)["main"]([CONFIG, *arguments])


def start(
    work_dir: Path,
    *arguments: str,
    options: Sequence[str] = (),
    preparation: Callable | None = None,
    environment: dict[str, str] | None = None,
) -> BaseProcess:
    """Start tools/train.py on the long run in another process, whose output goes to work_dir/output.

    options: for --cfg-options. preparation: called in that process before.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    arguments = ["--work-dir", str(work_dir), *arguments, *(["--cfg-options", *options] if options else [])]
    child = _context.Process(target=_train, args=(arguments, environment or {}, str(work_dir / "output"), preparation))
    with patch.dict(os.environ, ONE_CPU):
        child.start()
    return child


def finish(*processes: BaseProcess, timeout: float = 120) -> list[int | None]:
    """Exit codes of processes, negative for signals; those that take longer are killed."""
    for process in processes:
        process.join(timeout)
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in processes]


def train(work_dir: Path, *arguments: str, **options: object) -> int | None:
    """The exit code of one process; see `start`."""
    return finish(start(work_dir, *arguments, **options))[0]


def train_ranks(
    count: int,
    work_dir: Path,
    *arguments: str,
    options: Sequence[str] = (),
    preparations: Sequence[Callable | None] = (),
    launcher: str | None = None,
    restarts: int = 0,
) -> list[int | None]:
    """Exit codes of the processes of a distributed run, as torchrun would start them.

    preparations: for each rank, called in its process before. launcher: the folder of a launcher that restarts them;
    restarts: how often it has.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    arguments, ranks = (*arguments, "--launcher", "pytorch"), []
    for rank in range(count):
        environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
        if launcher is not None:
            environment["TORCHELASTIC_MAX_RESTARTS"] = "3"
            environment["TORCHELASTIC_ERROR_FILE"] = f"{launcher}/attempt_{restarts}/{rank}/error.json"
        preparation = preparations[rank] if preparations else None
        ranks.append(start(work_dir, *arguments, options=options, preparation=preparation, environment=environment))
    return finish(*ranks)


def _member(rank: int, count: int, folder: Path, function: Callable, arguments: tuple) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=count)
    torch.save(function(rank, *arguments), folder / f"{rank}.pth")
    torch.distributed.destroy_process_group()


def call_in_ranks(count: int, folder: Path, function: Callable, *arguments: object) -> list:
    """What function(rank, *arguments) returns in each of several processes, forked from this one, in one group."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_member, args=(rank, count, folder, function, arguments)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    assert finish(*ranks) == [0] * count
    return [torch.load(folder / f"{rank}.pth", weights_only=True) for rank in range(count)]


def output(folder: Path) -> str:
    """The end of what the processes of a run printed."""
    return (folder / "output").read_text()[-30_000:]


def final_state(work_dir: Path, name: str = "epoch_3.pth") -> dict:
    """What a run ends with: both sets of weights, optimizer, schedules, and the losses of all steps."""
    content = load_checkpoint_file(work_dir / name)
    logged = content["message_hub"]["log_scalars"]
    history = {key: x._log_history.tolist() for key, x in logged.items() if key.endswith(("loss", "lr", "norm"))}
    parts = ("state_dict", "ema_state_dict", "optimizer", "param_schedulers")
    return {**{part: content[part] for part in parts}, "history": history}
