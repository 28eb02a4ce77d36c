"""Every kernel goes through Triton's compiler and ptxas for an H100; no GPU is needed for that."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from soft_vit.ops.soft.triton import tiling

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from soft_vit.ops.soft.triton import backward, forward, solve

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
NAMES = {FP32: "*fp32", BF16: "*bf16", FP16: "*fp16"}
# Shared memory that one program may have, and registers of a thread.
SHARED_MEMORY = 227 * 1024
ALIGNED = ("_batch", "_head", "_row", "_column", "_problem", "num_tokens")


def compiled(kernel, dtypes: dict, constants: dict, unit_strides: set, options: dict, aligned: tuple = ALIGNED):
    """The kernel as it is launched on large tensors: divisible by 16 are pointers, and numbers named in aligned.

    options: of a launch, in which capitals name constants.
    """
    signature, constexprs, attributes = {}, {}, {}
    constants = constants | {name: value for name, value in options.items() if name.isupper()}
    options = {name: value for name, value in options.items() if not name.isupper()}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr or name in unit_strides:
            signature[name] = "constexpr"
            constexprs[name] = 1 if name in unit_strides else constants[name]
        elif name in dtypes:
            signature[name] = NAMES[dtypes[name]]
            attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name == "ridge" else "i32"
            if name.endswith(aligned):
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def kernels(
    m: int,
    d: int,
    dtype: torch.dtype,
    bottleneck_dtype: torch.dtype,
    layout: str,
    inverse: str = "newton",
    normalize: bool = False,
    multiple: int = 16,
) -> Iterator[tuple]:
    """(name, arguments of `compiled`) of every kernel that this case launches."""
    dtypes = dict.fromkeys(("q", "v", "x", "residual", "grad", "grad_q", "grad_v"), dtype)
    dtypes |= dict.fromkeys(("partial", "y", "w", "z", "scale", "step_size", "grad_z", "grad_tokens"), FP32)
    dtypes["bottleneck"] = bottleneck_dtype
    unit = "row" if layout == "maps" else "column"
    unit_strides = {f"{name}_{unit}" for name in ("q", "v", "x", "r", "g", "gq", "gv")} | {"b_column"}
    precision = tiling.product_precision(dtype)
    constants = {**tiling.widths(d, d), "NORMALIZE": normalize, "PRECISION": precision, "MULTIPLE": multiple}
    constants |= {"INVERSE": inverse, "START": "guarded_image" if normalize else "rowsum"}
    constants["BLOCK_A"] = tiling.padded_tile_size(m)
    cut = tiling.pass_tiling(16, 3136, m, d, d, precision, backward=False)
    of_gradients = constants | {"INVERSE": "none", "NORMALIZE": False}
    yield "kernel_sums of gradients", forward.kernel_sums, dtypes, of_gradients, unit_strides, cut.options()
    of_outputs = constants | {"HAS_RESIDUAL": True, "BLOCKS": cut.blocks}
    yield "kernel_outputs", forward.kernel_outputs, dtypes, of_outputs, unit_strides, cut.options()
    if m <= tiling.MAX_ON_CHIP:
        options = cut.options(newton=inverse == "newton" and tiling.padded_tile_size(m) == 64)
        yield "kernel_sums", forward.kernel_sums, dtypes, constants, unit_strides, options
        for name in ("image_step_size", "solve_forward", "solve_backward"):
            yield name, getattr(solve, name), dtypes, constants, unit_strides, tiling.solve_options(m, d, precision)
    cut = tiling.pass_tiling(16, 3136, m, d, d, precision, backward=True)
    for tokens, tokens_too in ((True, True),) if cut.blocks == 1 else ((True, False), (False, True)):
        parts = {"OF_TOKENS": tokens, "OF_BOTTLENECK": tokens_too, "BLOCKS": cut.blocks if tokens else 1}
        name = f"kernel_gradients {tokens} {tokens_too}"
        yield name, backward.kernel_gradients, dtypes, constants | parts, unit_strides, cut.options()


def resources(program, folder: Path) -> dict[str, int]:
    """Registers and bytes of stack of a thread; stack beyond none means spilled registers."""
    (folder / "kernel.cubin").write_bytes(program.asm["cubin"])
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [cuobjdump, "--dump-resource-usage", folder / "kernel.cubin"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("REG", "STACK")}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


PASSES = [
    ("kernel_sums", 32, FP32, 3, 0),
    ("kernel_outputs", 32, FP32, 4, 0),
    ("kernel_gradients True True", 32, BF16, 2, 0),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("kernel_sums of gradients", 32, FP32, 4, 0),
            ("kernel_gradients True True", 32, FP32, 2, 64),
            ("kernel_sums", 64, BF16, 3, 0),
            # Some of what does not change in the loop.
            ("kernel_gradients True True", 64, BF16, 2, 512),
        )
    ),
]


@pytest.mark.parametrize(("name", "d", "bottleneck_dtype", "programs", "spilled"), PASSES)
def test_passes_over_tokens_use_tensor_cores_and_registers(tmp_path, name, d, bottleneck_dtype, programs, spilled):
    case = {name: arguments for name, *arguments in kernels(49, d, BF16, bottleneck_dtype, "maps")}
    program = compiled(*case[name])
    ptx = program.asm["ptx"]
    assert "wgmma" in ptx
    assert "mma.sync" not in ptx
    if bottleneck_dtype == BF16:
        # In the loop, numbers are converted in pairs: one by one, they wait for the unit of the exponentials.
        assert "cvt.rn.bf16.f32" not in ptx
    used = resources(program, tmp_path)
    assert used["STACK"] <= spilled
    # So many fit on a multiprocessor.
    assert used["REG"] * 32 * case[name][-1]["num_warps"] <= 64 * 1024 // programs
    assert program.metadata.shared <= SHARED_MEMORY // programs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kernel_sums of gradients", "kernel_outputs", "kernel_gradients True True"])
def test_maps_of_14_x_14_are_read_in_words(name):
    """196 tokens, as in the third stage of an image of 224 pixels: channels begin at multiples of 4, heads of 16."""
    case = {name: arguments for name, *arguments in kernels(49, 32, BF16, FP32, "maps", multiple=4)}
    ptx = compiled(*case[name], aligned=("_batch", "_head", "b_row")).asm["ptx"]
    assert "cp.async" in ptx
    assert not re.search(r"(ld|st)\.global\.b16", ptx)


@pytest.mark.slow
@pytest.mark.parametrize("inverse", ["newton", "cholesky"])
def test_sizes_of_one_compile(inverse):
    """Triton makes constants of arguments that are one."""
    ones = {"heads", "num_tokens", "num_bottleneck", "size", "tiles", "chunks", "iters"}
    for name, kernel, dtypes, constants, units, options in kernels(1, 1, FP32, FP32, "heads", inverse, True):
        if inverse == "newton" or name in ("kernel_sums", "solve_forward", "solve_backward"):
            compiled(kernel, dtypes, constants, units | ones, options)


CASES = [
    (m, d, dtype, bottleneck_dtype, layout, *variant)
    for m, d in ((9, 16), (49, 32), (49, 64), (196, 64), (64, 128))
    for dtype, bottleneck_dtype in ((BF16, BF16), (BF16, FP32), (FP16, FP32), (FP32, FP32))
    for layout, variant in (("maps", ("newton", False)), ("tokens", ("cholesky", True)))
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)).replace("torch.", ""))
def test_every_configuration_compiles_and_fits(tmp_path, case):
    for name, *arguments in kernels(*case):
        program = compiled(*arguments)
        assert program.metadata.shared <= SHARED_MEMORY, name
        used = resources(program, tmp_path)
        # Some fp32 products on ordinary cores spill hundreds of bytes; a compiler that gives up spills many thousands.
        assert used["STACK"] <= 4096, name
        print(f"{name}: {used}, {program.metadata.shared} bytes shared, {arguments[-1]}")
