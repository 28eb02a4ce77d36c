"""Mixed precision, loss scaling, exact resume and data-parallel training of a small model, without MMEngine."""

import copy
import io

import pytest
import torch
from gpu.training import PER_RANK, batch, distance, fix_norms, gradients, run_rank, small_model
from stored import leaves
from torch.nn.functional import cross_entropy


# fp16 on a CPU is slow.
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str)
def test_autocast(device, dtype):
    """At most twice the error of the eager form under the same autocast, both against float64."""
    images, labels = batch(0, 4, device)
    model = small_model(device)
    exact = gradients(copy.deepcopy(model).double(), images.double(), labels)
    errors = {}
    for backend in (None, "eager"):
        model = small_model(device, backend=backend)
        errors[backend] = distance(gradients(model, images, labels, torch.autocast(device, dtype=dtype)), exact)
    assert errors[None] <= 2 * errors["eager"]
    # Measured on a CPU: 0.07 in bf16, 0.02 in fp16.
    assert errors["eager"] < 0.3


def steps(
    device: str, first: int, last: int, saved: bytes | None = None, scale: float = 2.0**14
) -> tuple[bytes, list[float]]:
    """Training steps in 16 bits, from what was saved at their beginning, if anything; what to save, and the losses."""
    model = small_model(device, drop_path_rate=0.3).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=scale, growth_interval=2)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler}
    if saved is not None:
        content = torch.load(io.BytesIO(saved), weights_only=True, map_location="cpu")
        for name, part in parts.items():
            part.load_state_dict(content[name])
        torch.set_rng_state(content["rng"])
        if device == "cuda":
            torch.cuda.set_rng_state(content["device_rng"])
    losses = []
    for step in range(first, last):
        images, labels = batch(step % 2, 8 if device == "cuda" else 2, device)
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    content = {name: part.state_dict() for name, part in parts.items()}
    content |= {"rng": torch.get_rng_state(), "device_rng": torch.cuda.get_rng_state() if device == "cuda" else None}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue(), losses


# On a CPU, tests/engine resumes runs, and tests/engine/optim scales losses.
cpu_is_slow = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)


@cpu_is_slow
@pytest.mark.usefixtures("deterministic")
def test_resumed_training_ends_with_the_same_bits(device):
    straight, losses = steps(device, 0, 5)
    half, before = steps(device, 0, 3)
    resumed, after = steps(device, 3, 5, half)
    assert before + after == losses
    one, other = (leaves(torch.load(io.BytesIO(x), weights_only=True)) for x in (straight, resumed))
    assert one.keys() == other.keys()
    for name, value in one.items():
        same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert same, name


@cpu_is_slow
def test_loss_scaling_stays_finite(device):
    """From a scale with which fp16 overflows: those steps are left out, and the others learn."""
    # bf16 does not overflow, and every step learns.
    count = 32 if device == "cuda" else 6
    saved, losses = steps(device, 0, count, scale=2.0**22)
    content = torch.load(io.BytesIO(saved), weights_only=True)
    assert all(value.isfinite().all() for value in content["model"].values())
    taken = content["optimizer"]["state"][0]["step"]
    assert 4 <= taken < count if device == "cuda" else taken == count
    assert sum(losses[-2:]) < sum(losses[:2])


@cpu_is_slow
def test_data_parallel_training(device, tmp_path):
    """Over all GPUs, or two processes of a CPU: the gradients of each rank are those of the whole batch."""
    world_size = torch.cuda.device_count() if device == "cuda" else 2
    torch.multiprocessing.spawn(run_rank, (world_size, device, tmp_path), nprocs=world_size)
    with torch.backends.cudnn.flags(allow_tf32=False):
        expected = gradients(fix_norms(small_model(device)), *batch(0, PER_RANK * world_size, device))
    ranks = [torch.load(tmp_path / str(rank), weights_only=True) for rank in range(world_size)]
    # The loss is that of a rank's own images.
    torch.testing.assert_close(torch.stack([rank.pop("loss") for rank in ranks]).mean(), expected.pop("loss"))
    for rank in ranks:
        assert distance(rank, expected) < 1e-4


@pytest.mark.gpu
def test_compiled_inference_in_cuda_graphs():
    images, _ = batch(0, 4, "cuda")
    model = small_model("cuda").eval()
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
        expected = model(images)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            actual = compiled(images).clone()
    error = (actual - expected).norm() / expected.norm()
    assert error <= 8 * torch.finfo(torch.bfloat16).eps


@pytest.mark.gpu
def test_compiled_training():
    """At most twice the error of the same model as it is, both against float64."""
    images, labels = batch(0, 4, "cuda")
    model = small_model("cuda")
    exact = gradients(copy.deepcopy(model).double(), images.double(), labels)
    errors = []
    for form in (torch.compile(model), model):
        found = gradients(form, images, labels, torch.autocast("cuda", dtype=torch.bfloat16))
        errors.append(distance({name.removeprefix("_orig_mod."): value for name, value in found.items()}, exact))
    assert errors[0] <= 2 * errors[1]
