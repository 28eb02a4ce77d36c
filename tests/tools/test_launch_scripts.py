"""The shell scripts that start runs on several devices, without a GPU or a cluster."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[2] / "tools"
TINY = shlex.split("""--cfg-options model.depths=[1,1,1,1] default_hooks.logger.interval=1
    train_dataloader.dataset.length=16 train_dataloader.batch_size=4 image_size=32
    val_dataloader.dataset.length=20 test_dataloader.dataset.length=20 train_cfg.max_epochs=1""")


def run(script: str, *arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if name not in ("NNODES", "PORT", "SRUN_ARGS", "GPUS")}
    env = {**kept, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **environment}
    command = ["bash", str(TOOLS / f"{script}.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env)


MISTAKES = [
    ("dist_train", "c.py 0", {}, "got '0'"),
    ("dist_train", "c.py 2", {"NNODES": "2", "NODE_RANK": "1"}, "NODE_RANK"),
    ("dist_train", "c.py 2 --max-restarts", {}, "got ''"),
    ("dist_train", "c.py 2 --max-restarts=x --amp", {}, "got 'x'"),
    ("dist_test", "c.py x.pth", {}, "usage: tools/dist_test.sh CONFIG CHECKPOINT GPUS"),
    ("slurm_train", "gpu name c.py", {}, "usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK"),
]


@pytest.mark.parametrize(("script", "arguments", "environment", "message"), MISTAKES)
def test_mistake_ends_in_one_line(script, arguments, environment, message):
    assert os.access(TOOLS / f"{script}.sh", os.X_OK)
    ended = run(script, *arguments.split(), **environment)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def recorder(folder: Path, name: str, exit_code: int = 0) -> Path:
    """Return a program that writes its arguments to folder/recorded and its threads to folder/threads."""
    program = folder / name
    arguments, threads = f'printf "%s\\n" "$@" >"{folder}/recorded"', f'echo "$OMP_NUM_THREADS" >"{folder}/threads"'
    program.write_text(f"#!/usr/bin/env bash\n{arguments}\n{threads}\nexit {exit_code}\n")
    program.chmod(0o755)
    return program


FOUR = {"NNODES": "4", "NODE_RANK": "3", "MASTER_ADDR": "10.0.0.1"}
MEETING = "--rdzv_backend c10d --rdzv_endpoint"


TORCHRUN = [
    ({}, "", "--standalone"),
    ({}, "--max-restarts 3", "--standalone --max_restarts 3"),
    ({"PORT": "12"}, "", "--nnodes 1 --master_addr localhost --master_port 12"),
    ({"PORT": "12"}, "--max_restarts=3", f"--nnodes 1 {MEETING} localhost:12 --max_restarts 3"),
    (FOUR, "", "--nnodes 4 --node_rank 3 --master_addr 10.0.0.1 --master_port 29500"),
    (FOUR, "--max-restarts=2", f"--nnodes 4 {MEETING} 10.0.0.1:29500 --max_restarts 2"),
]


@pytest.mark.parametrize(("environment", "restarts", "expected"), TORCHRUN)
def test_what_torchrun_is_given(tmp_path, environment, restarts, expected):
    environment = {**environment, "PYTHON": str(recorder(tmp_path, "python", 7))}
    arguments = ("a folder/c.py", "3", *restarts.split(), "--cfg-options", "data_root=my data")
    ended = run("dist_train", *arguments, **environment)
    # The exit code is the run's.
    assert ended.returncode == 7
    given = (tmp_path / "recorded").read_text().splitlines()
    launch = f"-m torch.distributed.run {expected} --nproc_per_node 3".split()
    script = [str(TOOLS / "train.py"), "a folder/c.py", "--launcher", "pytorch", "--cfg-options", "data_root=my data"]
    assert given == launch + script


CHOSEN = {"GPUS": "32", "GPUS_PER_NODE": "4", "CPUS_PER_TASK": "9", "SRUN_ARGS": "--time=1:00:00 --exclude=n1"}
SRUN = [
    ({}, {"--ntasks=8", "--ntasks-per-node=8", "--gres=gpu:8", "--cpus-per-task=5", "--signal=TERM@300"}),
    (CHOSEN, {"--ntasks=32", "--gres=gpu:4", "--time=1:00:00", "--exclude=n1"}),
]


@pytest.mark.parametrize(("environment", "expected"), SRUN)
def test_what_srun_is_given(tmp_path, environment, expected):
    recorder(tmp_path, "srun")
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = run("slurm_train", "part", "job", "a b/c.py", "work dir", "--resume", PATH=path, **environment)
    assert ended.returncode == 0, ended.stderr
    given = (tmp_path / "recorded").read_text().splitlines()
    script = [str(TOOLS / "train.py"), "a b/c.py", "--work-dir", "work dir", "--launcher", "slurm", "--resume"]
    assert given[-8:] == ["-u", *script]
    assert {"--partition=part", "--job-name=job", "--kill-on-bad-exit=1", *expected} <= set(given)
    # Each option is given once.
    assert len({argument.split("=")[0] for argument in given[:-9]}) == len(given[:-9])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes on gloo need a machine without a GPU")
def test_two_processes_train_and_test(demo, tmp_path):
    folder, config = tmp_path / "a folder", "my config.py"
    shutil.copytree(Path(demo).parents[1] / "_base_", tmp_path / "_base_")
    folder.mkdir()
    shutil.copy(demo, folder / config)
    trained = run("dist_train", config, 2, "--work-dir", "my run", *TINY, cwd=folder)
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert trained.stdout.count("Final top-1 accuracy") == 1
    log = [json.loads(line) for line in next(folder.glob("my run/*/vis_data/scalars.json")).read_text().splitlines()]
    # 16 images, 4 in a batch, 2 processes.
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 2]
    top1 = next(entry["accuracy/top1"] for entry in log if "accuracy/top1" in entry)

    tested = run("dist_test", config, "my run/epoch_1.pth", 2, "--work-dir", "test", *TINY[:-1], cwd=folder)
    assert tested.returncode == 0, tested.stderr[-2000:]
    assert f"accuracy/top1: {top1:.2f}" in tested.stdout
