"""Tile sizes and warps, from the shapes alone: nothing is tuned at run time, and sums have one order everywhere.

The budget is that of an H100 or H200: 255 registers a thread, 64 Ki registers and 227 KiB of shared memory for all
programs of a multiprocessor. A tile of the kernel, 64 tokens x 64 bottleneck tokens in fp32, is 32 registers a thread
of 4 warps, which are one warp group: its products of tensor cores have 64 rows, and 8 warps issue nearly twice the
instructions. For bf16 and D up to 64, a pass of the forward has 110 to 145 registers and three or four programs on a
multiprocessor, three next to Newton's iteration. The backward holds the kernel, its gradient and the terms of
both: two programs of up to 255 registers. Products in fp32 on ordinary cores keep whole rows of both operands in
registers, so their tiles are smaller.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

# Tokens of one program in a pass over N. Chunks depend on N and H alone, so that the order of a sum, and with it the
# last bit of an image's result, does not depend on the batch.
CHUNK = 512
# For M = 49 and D = 64, to write and read the sums of 512 tokens is a tenth of a forward's traffic. Where an image has
# more programs than four for each multiprocessor, they take more tokens; but not too many, because tensor cores cut off
# what they add, always towards zero.
MAX_PROGRAMS = 512
MAX_CHUNK = 4 * CHUNK
# Above it the m x m part runs as batched products: 2 m^3 operations on 12 m^2 bytes are bound by arithmetic from about
# m = 64 on, so there is no traffic left to save, and two matrices of 128 x 128 fp32 do not fit in registers.
MAX_ON_CHIP = 64
# Channels of a head up to which a pass over N leaves registers free.
NARROW = 32
# By warps of a program that has Newton's iteration on tensor cores: three programs of a multiprocessor, or two of twice
# the warps, hide each other's waiting. Without the limit some compilers take 230 for the step size before the loop. In
# wider heads the pass over tokens itself would spill.
NEWTON_REGISTERS = {4: 168, 8: 128}


@dataclass(frozen=True)
class Tiling:
    """How a pass over N is cut: `chunks` programs a problem and block, each `tiles` tiles of `block_n` tokens."""

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
        """Constants and options of a launch; newton: of one that also runs Newton's iteration."""
        options: dict[str, int | str] = {
            **widths(self.d, self.dv),
            "PRECISION": self.precision,
            "BLOCK_N": self.block_n,
            "BLOCK_M": self.block_m,
            "num_warps": self.warps,
            "num_stages": self.stages,
            # Multiply-adds are intended, and are not the default of every release.
            "enable_fp_fusion": True,
        }
        if newton and max(self.d, self.dv) <= (NARROW if self.precision == "ieee" else 64):
            options["maxnreg"] = NEWTON_REGISTERS[self.warps]
        return options


@lru_cache(maxsize=1024)
def pass_tiling(
    num_heads: int, num_tokens: int, num_bottleneck: int, d: int, dv: int, precision: str, backward: bool
) -> Tiling:
    """How a pass over tokens is cut, for heads of d and dv channels of q and v."""
    width = max(d, dv)
    narrow = width <= NARROW
    # Beyond 64 channels, blocks of 64 bottleneck tokens with their operands exceed the shared memory.
    block_m = min(padded_tile_size(num_bottleneck), 64 if width <= 64 else 32)
    blocks = -(-num_bottleneck // block_m)
    if precision == "ieee":
        block_n, warps, stages = (32 if narrow else 16), 8, 1
    elif backward:
        # Products of 32 tokens take no warp group. With more channels of v than of q, ptxas spills thousands of bytes
        # for them; for 64 tokens it does so on an A100 with several blocks.
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
    """The least power of two that holds size and is at least 16, the least side of a matrix product."""
    return max(16, 1 << (size - 1).bit_length())


def widths(d: int, dv: int) -> dict[str, int]:
    """Channels of q and v, and the sides of tiles that hold them."""
    return {"D": d, "DV": dv, "BLOCK_D": padded_tile_size(d), "BLOCK_DV": padded_tile_size(dv)}


def solve_options(size: int, width: int, precision: str) -> dict[str, int | str]:
    """Constants and options of the m x m kernels, a program for each problem; width: of the widest operand."""
    block_m = padded_tile_size(size)
    # Ordinary cores keep whole rows of operands in registers.
    fp32_warps = min(16, max(4, block_m * padded_tile_size(max(width, 32)) // 256))
    return {
        "BLOCK_M": block_m,
        # Three tf32 products where inputs carry 16 bits, otherwise fp32.
        "PRECISION": "ieee" if precision == "ieee" else "tf32x3",
        # A warp group, 4 warps, holds a tensor-core product of 64 x 64 whole.
        "num_warps": fp32_warps if precision == "ieee" else 4,
        "enable_fp_fusion": True,
    }


def product_precision(*dtypes: torch.dtype) -> str:
    """The PRECISION of products over N (see tiles.py) that is as exact as fp32 for operands of these dtypes."""
    return "ieee" if torch.float32 in dtypes else "split"


def newton_options(size: int) -> dict[str, int | str]:
    """Constants and options of the kernel of Newton's iteration alone, one program for each problem."""
    options: dict[str, int | str] = {
        "BLOCK_M": padded_tile_size(size),
        "PRECISION": "ieee",
        "num_warps": 4,
        "enable_fp_fusion": True,
    }
    if options["BLOCK_M"] == 64:
        options |= {"PRECISION": "fp16x3", "maxnreg": NEWTON_REGISTERS[4]}
    return options
