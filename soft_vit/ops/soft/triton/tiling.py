"""Tile sizes and warps, from the shapes alone: without tuning at run time, sums have the same order on every machine.

The budget is that of an H100 or H200: 255 registers per thread, 64 Ki registers and 227 KiB of shared memory for all
programs of a multiprocessor. A tile of the kernel, 64 tokens x 64 bottleneck tokens in fp32, takes 32 registers per
thread of 4 warps. These are one warp group: its tensor-core products have 64 rows, and 8 warps would issue nearly twice
the instructions. For bf16 and D up to 64, a forward pass takes 110 to 145 registers, so that three or four programs
fit on a multiprocessor (three if one runs Newton's iteration). The backward holds the kernel, its gradient and the
terms of both: two programs of up to 255 registers. Products in fp32 on ordinary cores keep whole rows of both operands
in registers, so their tiles are smaller.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

# Tokens of one program in a pass over N. Chunks depend on N and H alone. So the order of a sum, and with it the last
# bit of an image's result, does not depend on the batch.
CHUNK = 512
# For M = 49 and D = 64, writing and reading the sums of 512 tokens is a tenth of a forward's traffic. Where an image
# has more than four programs for each multiprocessor, they take more tokens. MAX_CHUNK limits them, because tensor
# cores truncate sums towards zero.
MAX_PROGRAMS = 512
MAX_CHUNK = 4 * CHUNK
# With more bottleneck tokens, the m x m part runs as batched products. At about m = 64 and above, 2 m^3 operations on
# 12 m^2 bytes are bound by arithmetic, so fusing saves no time; and two fp32 matrices of 128 x 128 do not fit in
# registers.
MAX_ON_CHIP = 64
# The most channels of a head for which a pass over N leaves registers free.
NARROW = 32
# Registers per thread, by number of warps, of a program that runs Newton's iteration on tensor cores. They let three
# programs, or two of twice the warps, share a multiprocessor and hide each other's latency. Without the limit some
# compilers take 230 for the step size before the loop. In wider heads the pass over tokens itself would spill.
NEWTON_REGISTERS = {4: 168, 8: 128}


@dataclass(frozen=True)
class Tiling:
    """How a pass over N is cut: `chunks` programs a problem and block, each of `tiles` tiles of `block_n` tokens."""

    d: int
    dv: int
    precision: str
    block_n: int
    block_m: int
    tiles: int
    chunks: int
    blocks: int
    warps: int
    stages: int

    def options(self, newton: bool = False) -> dict[str, int | str]:
        """Return constants and options of a launch. newton: whether it also runs Newton's iteration."""
        options: dict[str, int | str] = {
            **widths(self.d, self.dv),
            "PRECISION": self.precision,
            "BLOCK_N": self.block_n,
            "BLOCK_M": self.block_m,
            "num_warps": self.warps,
            "num_stages": self.stages,
            # The default differs between releases of Triton.
            "enable_fp_fusion": True,
        }
        if newton and max(self.d, self.dv) <= (NARROW if self.precision == "ieee" else 64):
            options["maxnreg"] = NEWTON_REGISTERS[self.warps]
        return options


@lru_cache(maxsize=1024)
def pass_tiling(
    num_heads: int, num_tokens: int, num_bottleneck: int, d: int, dv: int, precision: str, backward: bool
) -> Tiling:
    """Return how a pass over tokens is cut, for heads of d channels of q and dv channels of v."""
    width = max(d, dv)
    narrow = width <= NARROW
    # Beyond 64 channels, blocks of 64 bottleneck tokens with their operands exceed the shared memory.
    block_m = min(padded_tile_size(num_bottleneck), 64 if width <= 64 else 32)
    blocks = -(-num_bottleneck // block_m)
    if precision == "ieee":
        block_n, warps, stages = (32 if narrow else 16), 8, 1
    elif backward:
        # Products of 32 tokens cannot use a warp group, and ptxas spills thousands of bytes for them if v has more
        # channels than q. For 64 tokens it does so on an A100 with several blocks.
        block_n = 64 if d <= NARROW or (width <= 64 and blocks == 1) else 32
        warps, stages = (4 if width <= 64 else 8), 2
    else:
        block_n, warps, stages = 64, 4, (3 if narrow else 2)
    tiles = -(-num_tokens // block_n)
    chunk = min(max(CHUNK, num_heads * num_tokens // MAX_PROGRAMS), MAX_CHUNK)
    tiles_a_chunk = -(-tiles // -(-num_tokens // chunk))
    chunks = -(-tiles // tiles_a_chunk)
    return Tiling(d, dv, precision, block_n, block_m, tiles_a_chunk, chunks, blocks, warps, stages)


def padded_tile_size(size: int) -> int:
    """Return the smallest power of two that is at least size and at least 16, the smallest side of a matrix product."""
    return max(16, 1 << (size - 1).bit_length())


def widths(d: int, dv: int) -> dict[str, int]:
    """Return the channels of q and v, and the sides of tiles that hold them."""
    return {"D": d, "DV": dv, "BLOCK_D": padded_tile_size(d), "BLOCK_DV": padded_tile_size(dv)}


def solve_options(size: int, width: int, precision: str) -> dict[str, int | str]:
    """Return constants and options of the m x m kernels, one program for each problem. width: of the widest operand."""
    block_m = padded_tile_size(size)
    # Ordinary cores keep whole rows of operands in registers.
    fp32_warps = min(16, max(4, block_m * padded_tile_size(max(width, 32)) // 256))
    return {
        "BLOCK_M": block_m,
        # Three tf32 products for inputs of 16 bits, otherwise fp32.
        "PRECISION": "ieee" if precision == "ieee" else "tf32x3",
        # A warp group, 4 warps, holds a tensor-core product of 64 x 64 whole.
        "num_warps": fp32_warps if precision == "ieee" else 4,
        "enable_fp_fusion": True,
    }


def product_precision(*dtypes: torch.dtype) -> str:
    """Return the PRECISION (see tiles.py) that makes products over N of these dtypes as exact as in fp32."""
    return "ieee" if torch.float32 in dtypes else "split"
