"""Which backend runs a case, and which cases are refused."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from soft_vit.ops import soft_attention
from soft_vit.ops.soft.attention import use_triton
from soft_vit.ops.soft.triton import support


def tensors(d: int = 8, n: int = 9, **options) -> list[torch.Tensor]:
    return [torch.ones(1, 2, rows, d, **options) for rows in (n, 3, n)]


def test_cpu_is_eager():
    assert torch.equal(soft_attention(*tensors()), soft_attention(*tensors(), backend="eager"))
    for backend, value in (("triton", "'cpu'"), ("cuda", "'cuda'")):
        with pytest.raises(ValueError, match=value):
            soft_attention(*tensors(), backend=backend)


@pytest.fixture
def with_kernels(monkeypatch):
    """A device that has the kernels."""
    monkeypatch.setattr(support, "INSTALLED", True)
    monkeypatch.setattr(support, "INTERPRETED", True)
    monkeypatch.setattr(support, "interpreter_unavailable_reason", lambda: None)


UNFUSED = [(tensors(), {"inverse": "eigh"}, "eigh"), (tensors(), {"newton_gradient": "unrolled"}, "unrolled")]
UNFUSED += [(tensors(), {"newton_start": "guarded_batch"}, "guarded_batch")]
UNFUSED += [(tensors(dtype=torch.float64), {}, "float32"), (tensors(n=0), {}, "non-empty"), (tensors(d=129), {}, "129")]


@pytest.mark.parametrize(("inputs", "options", "value"), UNFUSED)
def test_cases_without_a_fused_form(inputs, options, value, with_kernels):
    """Explicitly, they are refused; by default, they run in eager."""
    with pytest.raises(ValueError, match=value):
        soft_attention(*inputs, **options, backend="triton")
    assert soft_attention(*inputs, **options).isfinite().all()


@pytest.mark.parametrize("index", [1, 2, 3])
def test_shapes_that_do_not_fit_reach_no_kernel(index, with_kernels):
    """A kernel would read beyond their memory."""
    arguments = [*tensors(), tensors()[2]]
    arguments[index] = arguments[index][:, :1]
    with pytest.raises(ValueError, match="bottleneck"):
        soft_attention(*arguments[:3], residual=arguments[3], backend="triton")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_kernel_that_is_not_taken_is_named_once(compiled, recwarn):
    """Where nobody chose a backend, and there is a GPU."""

    def compute(x, backend, device, reason):
        return x + use_triton(backend, device, reason)

    x, torn = torch.ones(3), f"is torn, compiled: {compiled}"
    if compiled:
        compute = torch.compile(compute, backend="eager", fullgraph=True)
    for arguments in (("eager", "cuda", torn), (None, "cpu", torn), (None, "cuda", None), *[(None, "cuda", torn)] * 2):
        assert torch.equal(compute(x, *arguments) - x, torch.full_like(x, arguments[1:] == ("cuda", None)))
    assert [torn in str(warning.message) for warning in recwarn if "eager form" in str(warning.message)] == [True]


@pytest.mark.parametrize("inverse", ["newton", "cholesky"])
def test_gpu_is_fused(monkeypatch, inverse):
    monkeypatch.setattr(support, "INSTALLED", True)
    support._warn_once.cache_clear()
    with FakeTensorMode():
        q, bottleneck, v = (x.bfloat16() for x in tensors(device="cuda"))
        x = soft_attention(q, bottleneck, v.mT.contiguous().mT, inverse=inverse)
        assert (x.shape, x.stride(), x.dtype) == (v.shape, (144, 72, 1, 9), torch.bfloat16)
        with pytest.warns(UserWarning, match="eigh"):
            assert soft_attention(q, bottleneck, v, inverse="eigh").shape == v.shape


def a_gpu(monkeypatch, major=9, minor=0, shared_memory=227):
    """Pretend that there is one GPU with so many KiB of shared memory, and clear the cache of its check."""
    properties = SimpleNamespace(major=major, minor=minor, shared_memory_per_block_optin=shared_memory << 10)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(support, "_gpu_unavailable_reason", support._gpu_unavailable_reason.__wrapped__)


GPUS = [((7, 5, 64), False, "7.5"), ((8, 9, 99), True, "160 KiB"), ((8, 9, 99), False, None), ((9, 0), True, None)]


@pytest.mark.parametrize(("gpu", "wide", "message"), GPUS)
def test_weak_gpus_are_left_to_eager(monkeypatch, gpu, wide, message):
    a_gpu(monkeypatch, *gpu)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setenv("CPATH", "include")
    reason = support.gpu_unavailable_reason(wide_heads=wide)
    assert (reason is None) if message is None else message in reason


def test_eager_without_a_c_compiler(monkeypatch, tmp_path):
    """Triton builds what launches a kernel when it is first called, from C that includes Python's headers."""
    a_gpu(monkeypatch)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CPATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(support.sysconfig, "get_path", lambda *_: tmp_path)
    for missing in ("gcc", "Python.h"):
        assert "gcc" in support.gpu_unavailable_reason(wide_heads=False)
        (tmp_path / missing).touch(0o755)
    assert support.gpu_unavailable_reason(wide_heads=False) is None


def test_residual_is_added_before_rounding():
    q, bottleneck, v = (x.bfloat16() for x in tensors())
    residual = torch.full_like(v, 2.0**-7)
    x = soft_attention(q, bottleneck, v, residual=residual)
    exact = soft_attention(q.float(), bottleneck.float(), v.float()) + residual.float()
    assert torch.equal(x, exact.bfloat16())
