"""Images without labels, as a data set of MMEngine."""

from typing import Any

from PIL import Image

from soft_vit.data.archives import StoredFile
from soft_vit.data.images import load_image
from soft_vit.engine.data.bad_images import ReadingDataset, require_data_root
from soft_vit.linearise.images import UnlabelledImages
from soft_vit.registry import DATASETS, register


@register(DATASETS)
class UnlabelledDataset(ReadingDataset):
    """All images below a folder, or in a TAR or ZIP, with a pipeline that begins with `img`, an RGB image of Pillow.

    held_out: images to leave out, none if they are more than a tenth of all. `images.samples` returns these, RGB in
    [0, 1]. Raises FileNotFoundError for a missing data_root, ValueError for one without images.
    """

    def __init__(self, data_root: str | None = None, held_out: int = 0, **kwargs: Any) -> None:
        require_data_root(data_root)
        self.images = UnlabelledImages(data_root, mean=(0.0,) * 3, std=(1.0,) * 3)
        self.images.hold_out(held_out)
        super().__init__(**kwargs)

    def load_data_list(self) -> list[dict]:
        return [{"entry": tuple(entry)} for entry in self.images.entries]

    def read(self, info: dict) -> Image.Image:
        return load_image(self.images.storage, StoredFile(*info["entry"]), bits=self.bits)
