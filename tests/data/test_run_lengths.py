"""Run lengths and their packed string, against COCO's own code."""

import numpy as np
from pycocotools import mask as mask_utils

from soft_vit.data.run_lengths import pack_runs, run_lengths, unpack_runs


def test_run_lengths_are_those_of_pycocotools():
    generator = np.random.default_rng(0)
    masks = [generator.random((37, 53)) < share for share in (0.0, 0.02, 0.5, 0.98, 1.0)]
    masks += [np.eye(5, dtype=bool), np.pad(np.ones((300, 211), bool), ((40, 0), (0, 7)))]
    for mask in masks:
        runs = run_lengths(mask)
        assert sum(runs) == mask.size
        encoded = mask_utils.encode(np.asfortranarray(mask.astype(np.uint8)))
        assert pack_runs(runs) == encoded["counts"].decode()
        assert unpack_runs(pack_runs(runs)) == runs
        other = mask_utils.frPyObjects({"size": list(mask.shape), "counts": runs}, *mask.shape)
        assert (mask_utils.decode(other).astype(bool) == mask).all()
