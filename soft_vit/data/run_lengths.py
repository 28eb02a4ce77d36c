"""COCO's run lengths of a mask, and the string that it packs them into (github.com/cocodataset/cocoapi, maskApi.c).

Run lengths go down the columns and begin with a run of zeros. In the string, each number stands in groups of five bits,
the lowest first, a sixth bit saying that another group follows, as characters from "0" on. From the fourth run on, the
numbers are differences from the run two places before.
"""

import numpy as np

__all__ = ["pack_runs", "run_lengths", "unpack_runs"]


def run_lengths(mask: np.ndarray) -> list[int]:
    """Lengths of the runs of a mask, bool [H, W]; the first is 0 where the mask begins with a one."""
    flat = np.concatenate([[False], mask.flatten(order="F"), [not mask[-1, -1]]])
    ends = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(ends, prepend=0).tolist()


def pack_runs(runs: list[int]) -> str:
    """The string of run lengths."""
    text = []
    for i, run in enumerate(runs):
        value = run - runs[i - 2] if i > 2 else run
        while True:
            bits, value = value & 31, value >> 5
            # Done when the sign bit of this group already tells the rest.
            more = value != (-1 if bits & 16 else 0)
            text.append(chr(48 + (bits | 32 * more)))
            if not more:
                break
    return "".join(text)


def unpack_runs(text: str) -> list[int] | None:
    """The run lengths in a string; None when it is damaged."""
    runs: list[int] = []
    value, shift = 0, 0
    for character in text:
        bits = ord(character) - 48
        # Runs of an image of any size that memory holds have at most seven characters.
        if not 0 <= bits < 64 or shift > 35:
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    return None if shift else runs
