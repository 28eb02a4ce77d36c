"""Draw where a token looks before its attention is swapped, after, and once it is linearised.

python -m docs.generate.linearised configs/linearise/linear_pico_shapes.py FILE
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint

from soft_vit.data.demo.shapes import draw_shape
from soft_vit.engine import load_config
from soft_vit.probe.view import attention_row, plot_attention_rows

OUT = Path(__file__).parents[1] / "images" / "linearised.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="of a LineariseClassifier on the generated shapes")
    parser.add_argument("checkpoint")
    parser.add_argument("--teacher", help="checkpoint of the teacher (default: the config's)")
    parser.add_argument("--index", type=int, default=3, help="of the image (default: 3)")
    parser.add_argument("--out", type=Path, default=OUT, help="(default: %(default)s)")
    args = parser.parse_args()
    cfg = load_config(args.config, {"model.teacher.checkpoint": args.teacher} if args.teacher else {})
    init_default_scope(cfg.default_scope)
    classifier = MODELS.build({**cfg.model, "data_preprocessor": cfg.data_preprocessor})
    classifier.init_weights()
    sample = draw_shape(seed=1, index=args.index, size=cfg.image_size)
    images = torch.from_numpy(sample.image).permute(2, 0, 1)
    image = classifier.data_preprocessor({"inputs": [images]})["inputs"][0]
    kind = classifier.model.attention[0]
    # The token in the middle of the shape, on the map of the first stage.
    x0, y0, x1, y1 = sample.box
    query = int((y0 + y1) / 8), int((x0 + x1) / 8)

    def row(model: torch.nn.Module):
        return attention_row(model.eval(), image, stage=1, query=query)

    rows = {"softmax, before": row(classifier.teacher.model), f"{kind}, swapped": row(classifier.model)}
    load_checkpoint(classifier, args.checkpoint)
    rows[f"{kind}, linearised"] = row(classifier.model)
    plot_attention_rows(rows, np.ascontiguousarray(sample.image), args.out)


if __name__ == "__main__":
    main()
