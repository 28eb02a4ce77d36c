"""Run a study: python -m studies STUDY ... (--help after STUDY lists its options)

gym            compare attentions on generated tasks
claims         check claims of the field
softmax        find softmax in each stage of each model
timm           find softmax in every architecture of timm
linearise      linearise frozen ViTs without labels, and measure what they keep
real           measure what holds on real pictures, and for a real teacher
"""

import os
from collections.abc import Sequence
from importlib import import_module

# Read when torch is first imported; tools/train.py says why.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from soft_vit.cli import command_line
from soft_vit.ops.numerics import check_choice

MODULES = {study: f"studies.{study}.command" for study in ("gym", "claims", "linearise", "real")}
MODULES |= {"softmax": "studies.softmax", "timm": "studies.timm_models"}


@command_line
def main(argv: Sequence[str]) -> None:
    study, *rest = argv or ["--help"]
    if study in ("-h", "--help"):
        print(__doc__)
        return
    import_module(MODULES[check_choice("STUDY", study, tuple(MODULES))]).main(rest)


if __name__ == "__main__":
    main()
