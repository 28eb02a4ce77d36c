"""Windows of images and label maps, turned, scaled and stretched at random, for a batch at once on its device.

Letters: B images, K windows of each image, H and W height and width of an image, S side of a window.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from soft_vit.data.label_maps import IGNORED
from soft_vit.engine.errors import UserError

__all__ = ["RandomWindows"]


@dataclass(frozen=True)
class RandomWindows:
    """Draws windows around what is labelled, so that small crops show more than background.

    size: S, pixels of a window's side. per_image: K. scales: range of the factor from an image's pixels to a window's,
    drawn evenly on a logarithmic axis. angle: largest turn to either side, degrees. stretch: largest ratio by which one
    axis is scaled more than the other. mirror: half of the windows are mirrored. spread: how far, in sides of a window,
    its middle may lie from the pixel that it is drawn for; that pixel is one of a class drawn from those in the image.

    Raises UserError (a ValueError) for a value outside its range.
    """

    size: int
    per_image: int = 1
    scales: tuple[float, float] = (1.0, 1.0)
    angle: float = 0.0
    stretch: float = 1.0
    mirror: bool = True
    spread: float = 0.35

    def __post_init__(self) -> None:
        if self.size < 1 or self.per_image < 1:
            raise UserError(f"windows.size is {self.size} and per_image {self.per_image}; give at least 1 of each.")
        if len(self.scales) != 2 or not 0 < self.scales[0] <= self.scales[1]:
            raise UserError(f"windows.scales is {self.scales}; give the least and the largest factor, above 0.")
        if not 0 <= self.angle <= 180 or self.stretch < 1 or self.spread < 0:
            raise UserError(
                f"windows.angle is {self.angle}, stretch {self.stretch}, spread {self.spread}; choose an angle from 0 "
                "to 180 degrees, a stretch of at least 1 and a spread of at least 0."
            )

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Images `[B, 3, H, W]` and labels uint8 `[B, H, W]` to `[B K, 3, S, S]` and `[B K, S, S]`.

        Beyond an image's border is its mirror image.
        """
        images = images.repeat_interleave(self.per_image, 0)
        labels = labels.repeat_interleave(self.per_image, 0)
        grid = F.affine_grid(self._maps(labels), [len(images), 1, self.size, self.size], align_corners=False)
        options = {"padding_mode": "reflection", "align_corners": False}
        windows = F.grid_sample(images, grid.to(images.dtype), mode="bilinear", **options)
        classes = F.grid_sample(labels[:, None].float(), grid, mode="nearest", **options)
        return windows, classes[:, 0].to(labels.dtype)

    def _maps(self, labels: Tensor) -> Tensor:
        """Affine maps `[B K, 2, 3]` from places in windows to places in images, both from -1 to 1."""
        count, device = len(labels), labels.device
        side = torch.tensor(labels.shape[-2:], device=device).flip(0)
        draw = torch.rand(count, 4, device=device)
        low, high = (math.log(scale) for scale in self.scales)
        half = self.size / 2 / torch.exp(low + (high - low) * draw[:, 0])
        middle = torch.stack([self._middle(one, 2 * float(reach)) for one, reach in zip(labels, half, strict=True)])
        # A window that fits into the image lies inside of it, but for its turned corners.
        reach = torch.minimum(half[:, None], side / 2)
        middle = torch.maximum(torch.minimum(middle, side - reach), reach)
        angle = (2 * draw[:, 1] - 1) * math.radians(self.angle)
        stretch = torch.exp((draw[:, 2] - 0.5) * math.log(self.stretch))
        mirrored = torch.where(draw[:, 3] < 0.5, -1.0, 1.0) if self.mirror else torch.ones_like(angle)
        x_axis = torch.stack([angle.cos(), angle.sin()], 1) * (half * stretch * mirrored)[:, None]
        y_axis = torch.stack([-angle.sin(), angle.cos()], 1) * (half / stretch)[:, None]
        return torch.stack([x_axis, y_axis, middle - side / 2], 2) / (side / 2)[None, :, None]

    def _middle(self, labels: Tensor, extent: float) -> Tensor:
        """(x, y) of the middle of a window that covers `extent` pixels of an image with labels `[H, W]`."""
        classes = labels.unique()
        classes = classes[classes != IGNORED]
        if len(classes) == 0:
            return torch.rand(2, device=labels.device) * torch.tensor(labels.shape, device=labels.device).flip(0)
        chosen = classes[torch.randint(len(classes), (), device=labels.device)]
        places = (labels == chosen).nonzero()
        place = places[torch.randint(len(places), (), device=labels.device)].flip(0)
        return place + 0.5 + (2 * torch.rand(2, device=labels.device) - 1) * self.spread * extent
