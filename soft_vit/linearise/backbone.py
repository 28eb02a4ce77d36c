"""ViTs of timm and transformers as functions from images to tokens: loading, swapping and saving.

Letters: B batch, P prefix tokens, N tokens of a map, C channels, H x W the image.
"""

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import timm
from safetensors import SafetensorError
from timm.layers import to_2tuple
from torch import Tensor, nn

from soft_vit import swap_attention
from soft_vit.layers.token_grid import TokenGrid
from soft_vit.text_tables import one_line
from soft_vit.weights.build import model_of_file

PREPROCESSOR = "preprocessor_config.json"
"""The file of transformers with the mean and standard deviation of a model's images."""


class Backbone(nn.Module):
    """A ViT without its head: normalised images `[B, 3, H, W]` to its final normalised tokens `[B, P + N, C]`.

    model: one of timm's ViTs that takes images of any size, or a vision model of transformers. mean, std: of its RGB
    images in [0, 1]. source: the name or folder from which it was loaded.
    """

    def __init__(self, model: Any, mean: Sequence[float], std: Sequence[float], source: str = "") -> None:
        super().__init__()
        self.model, self.mean, self.std, self.source = model, tuple(mean), tuple(std), source
        self.of_timm = hasattr(model, "forward_features")

    @property
    def layers(self) -> list[tuple[nn.Module, str]]:
        """Each block, and the name of its attention in it."""
        if self.of_timm:
            return [(block, "attn") for block in self.model.blocks]
        from soft_vit import hf

        return [(parent, name) for parent, name, _ in hf.vision_attentions(self.model)[1]]

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a patch."""
        if self.of_timm:
            return to_2tuple(self.model.patch_embed.patch_size)
        from soft_vit import hf

        return to_2tuple(hf.vision_attentions(self.model)[0].config.patch_size)

    def feat_size(self, x: Tensor) -> tuple[int, int]:
        """Return the map (Y, X) of the tokens of images `[B, 3, H, W]`."""
        return x.shape[-2] // self.patch_size[0], x.shape[-1] // self.patch_size[1]

    def attention(self, block: int) -> Any:
        """Return the attention of a block."""
        parent, name = self.layers[block]
        return getattr(parent, name)

    def attend(self, block: int, x: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """Call the swapped attention of a block with the arguments that another received, within a forward of x."""
        kwargs = dict(kwargs)
        if not self.of_timm:
            kwargs["grid"] = self.feat_size(x)
        elif not isinstance(kwargs.get("attn_mask"), TokenGrid):
            kwargs["attn_mask"] = TokenGrid(self.feat_size(x), self.model.num_prefix_tokens, kwargs.get("attn_mask"))
        return first(self.attention(block)(*args, **kwargs))

    def forward(self, x: Tensor) -> Tensor:
        if self.of_timm:
            # timm's ViTs that average tokens normalise the average alone, by fc_norm; otherwise it is an identity.
            return self.model.fc_norm(self.model.forward_features(x))
        given = {name: True for name in signature(self.model.forward).parameters if name == "interpolate_pos_encoding"}
        return self.model(pixel_values=x, **given).last_hidden_state


def first(result: Any) -> Tensor:
    """Return the tokens in the result of a layer; those of transformers may return a tuple."""
    return result[0] if isinstance(result, tuple) else result


def load_backbone(name: str, **kwargs: Any) -> Backbone:
    """Load a ViT with its weights, without its head.

    name: of a timm model, a folder that timm's `save_for_hf` or transformers' `save_pretrained` wrote, also after a
    swap, or a checkpoint that notes its model, as `tools/train.py` writes it. kwargs: of `timm.create_model`. Raises
    ValueError, in one sentence, for what cannot be loaded.
    """
    folder = Path(name).expanduser()
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text()) if file.is_file() else {}
        if "model_type" in config:
            return _load_transformers(folder, config)
        given = {"num_classes": 0, "dynamic_img_size": True}
        if folder.is_file():
            # Its mean and standard deviation are saved with a student.
            model: Any = model_of_file(None, folder, "drop", **given)[0].eval()
        else:
            where = f"local-dir:{folder}" if config else name
            model = timm.create_model(where, **{"pretrained": True, **given, **kwargs}).eval()
    except Exception as error:
        # Hub clients, timm and transformers raise errors of many types.
        what = "one of timm's ViTs with weights, or a folder of one"
        raise ValueError(f"teacher must be {what}, got {name} ({one_line(error)}).") from error
    source = str(folder) if folder.is_file() else name
    return Backbone(model, model.pretrained_cfg["mean"], model.pretrained_cfg["std"], source)


def _load_transformers(folder: Path, config: dict[str, Any]) -> Backbone:
    import transformers

    from soft_vit import hf

    given = json.loads((folder / PREPROCESSOR).read_text())
    if "soft_vit" in config:
        model = hf.from_pretrained(folder)
    else:
        whole = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder, config=getattr(whole, "vision_config", whole))
    return Backbone(model.eval(), given["image_mean"], given["image_std"], str(folder))


def make_student(teacher: Backbone, kind: str, blocks: Iterable[int] | None = None, **options: Any) -> Backbone:
    """Return a copy of a teacher with another attention in some blocks, see `soft_vit.swap_attention`."""
    student = copy.deepcopy(teacher).requires_grad_(True)
    swap_attention(student.model, kind, blocks, **options)
    return student


def save_backbone(backbone: Backbone, folder: str | Path) -> None:
    """Write the weights and the config, with its note of swaps: all files, or none.

    `timm.create_model("local-dir:FOLDER", pretrained=True)` or `soft_vit.hf.from_pretrained(FOLDER)` loads them. Raises
    ValueError where they cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".saving") as temporary:
            if backbone.of_timm:
                timm.models.save_for_hf(backbone.model, temporary, safe_serialization=True)
            else:
                backbone.model.save_pretrained(temporary)
                shutil.copy(Path(backbone.source) / PREPROCESSOR, temporary)
            for path in Path(temporary).iterdir():
                os.replace(path, folder / path.name)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder} must have room for the weights ({error}); run the command again then.") from error
