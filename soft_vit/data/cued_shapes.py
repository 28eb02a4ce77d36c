"""Scenes that ask a question of distant places: several shapes, and a cue whose colour says which of them is meant."""

import numpy as np

from soft_vit.data.shape_drawing import CLASSES, Stream, blank_canvas, finish, paint_disc, paint_shape, tight_box
from soft_vit.data.shapes import ShapeSample, checked_size

# Of shapes and cues; far from one another and from the dull colours of the clutter.
COLORS = ((1, 0.1, 0.1), (0.1, 0.9, 0.1), (0.15, 0.2, 1), (1, 0.95, 0.05), (0.05, 0.95, 0.95), (1, 0.1, 0.95))
NUM_SHAPES = 4
# Places for shapes and cue: a grid of 3 x 3 cells.
SIDE = 3
FAMILY = 7


def draw_cued_shapes(seed: int, index: int, size: int | tuple[int, int] = 64) -> ShapeSample:
    """Draw one image: four shapes of different classes and colours, and a white disc with a coloured centre, the cue.

    The label is the class of the shape in the cue's colour, and so are box and mask. Arguments and errors as in
    `draw_shape`.
    """
    height, width = checked_size(size)
    label = index % len(CLASSES)
    stream = Stream(seed, index, FAMILY)

    def draw(count: int, numbers: list[int]) -> list[int]:
        return [numbers.pop(stream.integer(0, len(numbers) - 1)) for _ in range(count)]

    canvas = blank_canvas(stream, height, width)
    places = draw(NUM_SHAPES + 1, list(range(SIDE * SIDE)))
    colors = draw(NUM_SHAPES, list(range(len(COLORS))))
    others = draw(NUM_SHAPES - 1, [other for other in range(len(CLASSES)) if other != label])
    cell = height / SIDE, width / SIDE
    radius = 0.5 * min(cell)
    centres = [((place % SIDE + 0.5) * cell[1], (place // SIDE + 0.5) * cell[0]) for place in places]
    masks = []
    for shape, color, (cx, cy) in zip([label, *others], colors, centres, strict=False):
        mask, _ = paint_shape(stream, canvas, shape, stream.uniform(0.8, 1.0) * radius, cx, cy, COLORS[color])
        masks.append(mask)
    cue = np.array(COLORS[colors[0]], dtype=np.float32)
    paint_disc(canvas, *centres[-1], 0.75 * radius, np.ones(3, dtype=np.float32))
    paint_disc(canvas, *centres[-1], 0.5 * radius, cue)
    box = np.array(tight_box(masks[0]), dtype=np.float32)
    return ShapeSample(image=finish(stream, canvas), label=label, box=box, mask=masks[0])
