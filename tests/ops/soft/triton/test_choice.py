"""Which backend runs, and what is refused."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from soft_vit.ops import newton_inverse, soft_attention
from soft_vit.ops.soft.triton import op, support


def tensors(
    d: int = 8, m: int = 3, n: int = 9, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> list[torch.Tensor]:
    return [torch.ones(1, 2, rows, d, dtype=dtype, device=device) for rows in (n, m, n)]


@pytest.mark.parametrize(
    ("function", "inputs"), [(soft_attention, tensors()), (newton_inverse, [torch.eye(3).expand(2, 3, 3)])]
)
def test_cpu_is_eager(function, inputs):
    assert torch.equal(function(*inputs), function(*inputs, backend="eager"))
    with pytest.raises(ValueError, match="got 'cpu'"):
        function(*inputs, backend="triton")
    with pytest.raises(ValueError, match="cuda"):
        function(*inputs, backend="cuda")


@pytest.fixture
def with_kernels(monkeypatch):
    """A device that has the kernels."""
    monkeypatch.setattr(support, "INSTALLED", True)
    monkeypatch.setattr(support, "INTERPRETED", True)


def matrices(shape: tuple[int, ...] = (2, 3, 3), dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.eye(shape[-1], dtype=dtype).expand(shape).clone().requires_grad_()]


@pytest.mark.parametrize(
    ("function", "inputs", "options", "named"),
    [
        (soft_attention, tensors(), {"inverse": "eigh"}, "eigh"),
        (soft_attention, tensors(), {"newton_gradient": "unrolled"}, "unrolled"),
        (soft_attention, tensors(), {"newton_start": "guarded_batch"}, "guarded_batch"),
        (soft_attention, tensors(dtype=torch.float64), {}, "float32"),
        (soft_attention, tensors(n=0), {}, "non-empty"),
        (soft_attention, tensors(d=129), {}, "129"),
        (newton_inverse, matrices((2, 65, 65)), {}, "65 x 65"),
        (newton_inverse, matrices(dtype=torch.float64), {}, "float32"),
        (newton_inverse, matrices((0, 3, 3)), {}, "non-empty"),
        (newton_inverse, matrices(), {"gradient": "unrolled"}, "unrolled"),
    ],
)
def test_cases_without_a_fused_form(function, inputs, options, named, with_kernels):
    """Refused when asked for, and left to eager when not."""
    with pytest.raises(ValueError, match=named):
        function(*inputs, **options, backend="triton")
    assert function(*inputs, **options).isfinite().all()


def test_inverse_on_a_gpu_is_fused(monkeypatch):
    """Without a gradient there is none to unroll. An answer on the CPU marks the fused form."""
    monkeypatch.setattr(support, "INSTALLED", True)
    monkeypatch.setattr(op, "newton_forward", lambda a, *options: a.new_full(a.shape, 7, device="cpu"))
    with FakeTensorMode():
        fused = torch.ones(2, 1, 3, 3, device="cuda")
        for options in ({}, {"gradient": "unrolled"}):
            assert newton_inverse(fused, **options).device.type == "cpu"
        assert newton_inverse(fused, backend="eager").device.type == "cuda"
        assert newton_inverse(fused.double()).device.type == "cuda"
        assert newton_inverse(torch.ones(2, 65, 65, device="cuda")).device.type == "cuda"


@pytest.mark.parametrize("name", ["bottleneck", "v", "residual"])
def test_shapes_that_do_not_fit_reach_no_kernel(name, with_kernels):
    """A kernel would read beyond their memory."""
    arguments = dict(zip(("q", "bottleneck", "v", "residual"), (*tensors(), tensors()[2]), strict=True))
    arguments[name] = arguments[name][:, :1]
    with pytest.raises(ValueError, match="bottleneck"):
        soft_attention(**arguments, backend="triton")


@pytest.mark.parametrize("inverse", ["newton", "cholesky"])
def test_gpu_is_fused(monkeypatch, inverse):
    monkeypatch.setattr(support, "INSTALLED", True)
    with FakeTensorMode():
        q, bottleneck, v = (x.bfloat16() for x in tensors(device="cuda"))
        x = soft_attention(q, bottleneck, v.mT.contiguous().mT, inverse=inverse)
        assert (x.shape, x.stride(), x.dtype) == (v.shape, (144, 72, 1, 9), torch.bfloat16)
        assert soft_attention(q, bottleneck, v, inverse="eigh").shape == v.shape


def a_gpu(monkeypatch, capability=(9, 0), shared_memory=227 << 10):
    """Pretend that there is one, and that nothing was asked of it."""
    properties = SimpleNamespace(major=capability[0], minor=capability[1], shared_memory_per_block_optin=shared_memory)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(support, "_gpu_unavailable_reason", support._gpu_unavailable_reason.__wrapped__)


@pytest.mark.parametrize(
    ("capability", "shared_memory", "d", "message"),
    [
        ((7, 5), 64 << 10, 32, "7.5"),
        ((8, 9), 99 << 10, 64, "160 KiB"),
        ((8, 9), 99 << 10, 32, None),
        ((9, 0), 227 << 10, 128, None),
    ],
)
def test_weak_gpus_are_left_to_eager(monkeypatch, capability, shared_memory, d, message):
    a_gpu(monkeypatch, capability, shared_memory)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setenv("CPATH", "include")
    reason = support.gpu_unavailable_reason(wide_heads=d > 32)
    assert (reason is None) if message is None else message in reason


def test_eager_without_a_c_compiler(monkeypatch, tmp_path):
    """Triton builds what launches a kernel when it is first called, from C that includes Python's headers."""
    a_gpu(monkeypatch)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CPATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(support.sysconfig, "get_path", lambda *_: tmp_path)
    for missing in ("gcc", "Python.h"):
        with pytest.warns(UserWarning, match="C compiler"):
            assert "gcc" in support.gpu_unavailable_reason(wide_heads=False)
        (tmp_path / missing).touch(0o755)
    assert support.gpu_unavailable_reason(wide_heads=False) is None


def test_residual_is_added_before_rounding():
    q, bottleneck, v = (x.bfloat16() for x in tensors())
    residual = torch.full_like(v, 2.0**-7)
    x = soft_attention(q, bottleneck, v, residual=residual)
    exact = soft_attention(q.float(), bottleneck.float(), v.float()) + residual.float()
    assert torch.equal(x, exact.bfloat16())
