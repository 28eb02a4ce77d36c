"""Predictors: a model with its weights, transforms and class names."""

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.registry import DATASETS, FUNCTIONS, MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from PIL import Image
from timm.data import ImageNetInfo, create_transform
from torch import Tensor, nn
from torchvision.transforms.v2.functional import pil_to_tensor
from tqdm import tqdm

from soft_vit.data.images import to_rgb
from soft_vit.data.label_maps import IGNORED, label_set
from soft_vit.dense.windows import merge_boxes, tiles_of
from soft_vit.engine.config import resolve
from soft_vit.engine.data.views import data_config, set_scale, set_view, shown_datasets, view_of_config
from soft_vit.engine.entries import type_name
from soft_vit.engine.hooks.weights import fit_image_size
from soft_vit.engine.models.notes import cfg_of_config, normalisation_of
from soft_vit.engine.models.timm_model import create_timm_model, timm_network
from soft_vit.models.base import require_known
from soft_vit.ops.numerics import at_least
from soft_vit.predict.results import Instances, RankedClasses, Result, class_name, ranked_classes, result_of
from soft_vit.probe.load import require_device
from soft_vit.weights.build import model_of_file
from soft_vit.weights.load import load_into
from soft_vit.weights.read import load_weights
from soft_vit.weights.spec import ModelSpec


class TimmModel:
    """A timm model by name, for images that are resized, cropped and normalised as timm does for it.

    checkpoint: a file of weights, which decide the number of classes; what it notes, such as the input size, the
    normalisation and options, overrides the model's own, see `ModelSpec`. pretrained: without a checkpoint, load
    the published weights; False keeps random ones. img_size: side of the images in pixels, or (H, W). whole: images
    are stretched to that size, and not cropped. bits: of the values in images of 16 bits.

    notes: a sentence for each change of the weights, and one if the checkpoint lacks the size or normalisation of its
    images.
    Raises ValueError or FileNotFoundError for a model or a file that cannot be used.
    """

    # See `ConfigPredictor`.
    by_windows, label_type, upright = False, None, None

    def __init__(
        self,
        name: str,
        *,
        checkpoint: str | Path | None = None,
        pretrained: bool = True,
        img_size: int | tuple[int, int] | None = None,
        whole: bool = False,
        bits: int | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        require_device(device)
        self.bits = bits
        self.device = torch.device(device)
        self.notes: list[str] = []
        if checkpoint is None:
            self.model = create_timm_model(name, pretrained)
        else:
            require_known(name)
            weights = load_weights(checkpoint)
            self.model, report = model_of_file(name, weights, "strict")
            size_known = weights.spec.img_size or img_size or "input_size" in weights.spec.cfg
            if missing := ["size"] * (not size_known) + ["normalisation"] * ("mean" not in weights.spec.cfg):
                what = " and ".join(missing)
                self.notes.append(f"{checkpoint} does not give the {what} of its images; those of {name} are used.")
            self.notes += report.changes
        self.spec = ModelSpec.of(self.model)
        self.data = data_config(self.model.pretrained_cfg, img_size)
        if whole:
            self.data |= {"crop_pct": 1.0, "crop_mode": "squash"}
        fit_image_size(self.model.eval(), self.data["input_size"][1:])
        self.transform = create_transform(**self.data, is_training=False)
        self.model.to(self.device)

    def inputs(self, images: Sequence[Image.Image]) -> Tensor:
        """Return images of any size as the model sees them, `[B, 3, H, W]`. Raises BadImage, see `to_rgb`."""
        return torch.stack([self.transform(to_rgb(image, self.bits)) for image in images]).to(self.device)


class TimmPredictor(TimmModel):
    """Predicts classes by a timm model. topk: classes reported for an image. options: of `TimmModel`."""

    def __init__(self, name: str, *, topk: int = 5, **options: Any) -> None:
        super().__init__(name, **options)
        self.topk = topk
        if not getattr(self.model, "num_classes", 0):
            raise ValueError(f"model must be a classifier, got {name}.")
        self.names = readable_names(self.spec.class_names(self.model.num_classes))
        softmax = partial(torch.softmax, dim=-1)
        self.scores: Callable[[Tensor], Tensor] = torch.sigmoid if self.spec.multi_label else softmax

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[RankedClasses]:
        """Return the result of each image, of any size. Raises BadImage for one that `to_rgb` refuses."""
        logits = self.model(self.inputs(images)).float()
        if logits.ndim != 2:
            raise ValueError(f"model must be a classifier, got scores of shape {tuple(logits.shape)}; give a --config.")
        return [ranked_classes(row, self.names, self.topk) for row in self.scores(logits)]


def readable_names(names: Sequence[Any]) -> list[str]:
    """Return class names, with words instead of WordNet's numbers such as n01440764."""
    return [_wordnet_words().get(str(name), str(name)) for name in names]


@cache
def _wordnet_words() -> ChainMap[str, str]:
    """Return ImageNet's words by WordNet's numbers; reading them takes longer than to classify an image."""
    lists = (ImageNetInfo(subset).label_descriptions(as_dict=True) for subset in ("imagenet-1k", "imagenet-22k"))
    return ChainMap(*lists)


class ConfigPredictor:
    """The model of a config with the weights of a checkpoint; images are prepared as in the config's test loop.

    A run's averaged weights are preferred to its plain ones. img_size: side of a classifier's images or (H, W), by
    default the config's. score_thr: lowest score of an instance. topk: classes reported for an image. options: entries
    of the config by dotted name. Class names come from the checkpoint, else from the config's test data. scale: a
    segmentor sees images at this share of their own resolution, instead of the size of the config's test. tiles: a
    detector sees images in tiles of this side, in pixels; overlap: share of the side from 0 to 1, without 1. Objects in
    the overlap are merged, see `soft_vit.dense.windows.merge_boxes`, and masks are left out.

    by_windows: whether windows of images are read, which are seen in their own resolution. label_type: the NumPy type
    of the classes of `strips`, None without them. key: text that tells the model and its test from others.
    notes: a sentence for each change of the weights. Raises ValueError or FileNotFoundError for a config or a file that
    cannot be used.
    """

    def __init__(
        self,
        config: str | Path,
        checkpoint: str | Path,
        *,
        img_size: int | tuple[int, int] | None = None,
        score_thr: float = 0.3,
        topk: int = 5,
        device: str | torch.device = "cpu",
        options: dict | None = None,
        scale: float | None = None,
        tiles: int | None = None,
        overlap: float = 0.2,
    ) -> None:
        if tiles is not None and not (tiles > 0 and 0 <= overlap < 1):
            raise ValueError(f"tiles must be above 0, and overlap in [0, 1), got {tiles} and {overlap}.")
        self.tiles, self.overlap = tiles, overlap
        self.score_thr, self.topk = score_thr, topk
        weights = load_weights(checkpoint)
        cfg = resolve(config, options, tested=weights.spec)
        init_default_scope(cfg.get("default_scope") or "mmengine")
        if scale is not None:
            set_scale(cfg, scale)
        model = dict(cfg.model)
        if cfg.get("data_preprocessor") is not None:
            # As Runner does.
            model.setdefault("data_preprocessor", cfg.data_preprocessor)
        if model.get("pretrained") is True:
            # The checkpoint has all weights.
            model["pretrained"] = False
        self.model = MODELS.build(model)
        # The config has the task, also of weights that do not note theirs.
        self.spec = weights.spec.with_classes(weights.spec.label_names, bool(model.get("multi_label")))
        dataset = shown_datasets(cfg)[0]
        self.bits: int | None = dataset.get("bits")
        self.upright: bool | None = dataset.get("upright")
        # The pipeline for generated images of one size does not resize.
        if img_size is not None or "size" in dataset:
            set_view(cfg, view_of_config(cfg, img_size, None))
        # How its images are prepared, in timm's terms, as far as the config determines it.
        self.data = cfg_of_config(cfg) | normalisation_of(self.model)
        network = timm_network(self.model)
        if tiles is not None and (network is not None or hasattr(self.model, "strips")):
            raise ValueError(f"tiles must be left out for other models than detectors, got {tiles}.")
        if img_size is not None and network is None:
            raise ValueError(f"img_size must be left out for other models than classifiers of timm, got {img_size}.")
        if img_size is not None:
            fit_image_size(network, img_size)
        self.notes = load_into(self.model if network is None else network, weights, "strict").changes
        sources = (dataset.get("metainfo"), getattr(DATASETS.get(dataset.type), "METAINFO", None))
        known = [source["classes"] for source in sources if source and source.get("classes")]
        known += [label_set(dataset["labels"]).names] if dataset.get("labels") else []
        self.names = readable_names(weights.spec.label_names or next(iter(known), ()))
        steps = [type_name(step) for step in dataset.get("pipeline", ()) if not type_name(step).startswith("Load")]
        strips = hasattr(self.model, "strips") and steps == ["PackSegmentation"]
        self.by_windows = strips or tiles is not None
        self.prepare = _preparation(dataset)
        collate = dict(cfg.test_dataloader.get("collate_fn") or {"type": "pseudo_collate"})
        self.collate = partial(FUNCTIONS.get(collate.pop("type")), **collate)
        self.label_type = (np.int16 if self.model.head.num_classes > 256 else np.uint8) if strips else None
        self.key = f"{model} {sum_of_weights(self.model) if strips else 0}"
        self.device = device
        self.model.to(device).eval()

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[Result]:
        """Return the result of each image, of any size. Raises BadImage for one that `to_rgb` refuses."""
        return self._predict(images) if self.tiles is None else [self._over_tiles(image) for image in images]

    def _predict(self, images: Sequence[Image.Image]) -> list[Result]:
        prepared = [self.prepare(to_rgb(image, self.bits)) for image in images]
        for image, sample in zip(images, prepared, strict=True):
            self._note_shrinking(image, sample["inputs"])
        # In a batch of several sizes, padding would change what attention sees of an image.
        equal = len({sample["inputs"].shape for sample in prepared}) == 1
        batches = [prepared] if equal else [[sample] for sample in prepared]
        found = [sample for batch in batches for sample in self.model.test_step(self.collate(batch))]
        return [result_of(sample, self.names, self.score_thr, self.topk) for sample in found]

    def _over_tiles(self, image: Any) -> Instances:
        """Return the objects of an image of Pillow, or of a `TiffImage`."""
        tiles = tiles_of(image.size[::-1], self.tiles, self.overlap)
        bar = tqdm(tiles.tolist(), unit="tile", leave=False, disable=None)
        found = [result for tile in bar for result in self._predict([image.crop(tile)])]
        boxes = np.concatenate([one.boxes + np.tile(tiles[i, :2], 2) for i, one in enumerate(found)])
        owners = np.repeat(np.arange(len(tiles)), [len(one.labels) for one in found])
        scores = np.array([score for one in found for score in one.scores])
        labels = np.array([label for one in found for label in one.labels])
        kept = merge_boxes(tiles.astype(float), owners, boxes, scores, labels)
        labels = labels[kept].tolist()
        return Instances(boxes[kept], labels, [class_name(self.names, i) for i in labels], scores[kept].tolist())

    def _note_shrinking(self, image: Image.Image, seen: Tensor) -> None:
        height, width = seen.shape[-2:]
        if hasattr(self.model, "strips") and 4 * height * width < image.height * image.width:
            sizes = f"{image.width} x {image.height} pixels is seen at {width} x {height}"
            note = f"An image of {sizes}, the size of the config's test; --scale 1 shows all pixels."
            self.notes += [note] * (not any("--scale" in known for known in self.notes))

    @torch.inference_mode()
    def strips(self, image: Any, first: int = 0) -> Iterator[np.ndarray]:
        """Yield the classes of the rows of an image, in strips `[n, W]` from row `first` on; needs `by_windows`.

        image: of Pillow, or a `TiffImage`, whose windows are read when they are seen.
        """
        pixels = _Pixels(image, self)
        for rows in self.model.strips(pixels, image.size[::-1], first, progress=True):
            yield rows.cpu().numpy()


def sum_of_weights(model: nn.Module) -> float:
    """Return the sum of all weights and buffers, which tells the weights of two files apart.

    It has ten digits: the others depend on the order of the terms, and so on the device and its number of threads.
    """
    return float(f"{sum(float(values.double().sum()) for values in model.state_dict().values()):.10g}")


class _Pixels:
    """An image of which windows `[:, rows, columns]` are normalised tensors `[3, h, w]`."""

    def __init__(self, image: Any, predictor: ConfigPredictor) -> None:
        self.shape = (3, *image.size[::-1])
        self.image, self.predictor = image, predictor

    def __getitem__(self, place: tuple[slice, slice, slice]) -> Tensor:
        _, rows, columns = place
        seen = to_rgb(self.image.crop((columns.start, rows.start, columns.stop, rows.stop)), self.predictor.bits)
        return self.predictor.model.data_preprocessor.normalise(pil_to_tensor(seen).to(self.predictor.device))


def _preparation(dataset: dict[str, Any]) -> Callable[[Image.Image], dict[str, Any]]:
    """Return a function that turns an image into a sample as a data set of a config does."""
    if "pipeline" not in dataset:
        # CocoImages returns whole images, which the detector resizes.
        return lambda image: {
            "inputs": pil_to_tensor(image),
            "data_samples": BaseDataElement(metainfo={"ori_shape": image.size[::-1]}),
        }
    names = [type_name(transform) for transform in dataset["pipeline"]]
    pipeline = Compose([step for step in dataset["pipeline"] if not type_name(step).startswith("Load")])

    def prepare(image: Image.Image) -> dict[str, Any]:
        shape = image.size[::-1]
        sample = {"img_shape": shape, "ori_shape": shape, "img_path": "", "sample_idx": 0}
        if type_name(dataset) == "LabelMapTree":
            sample |= {"img": pil_to_tensor(image), "gt_seg_map": torch.full(shape, IGNORED, dtype=torch.uint8)}
        else:
            # mmcv loads BGR.
            order = -1 if "LoadImageFromFile" in names else 1
            sample["img"] = np.array(image)[..., ::order].copy()
        return pipeline(sample)

    return prepare


Predictor = TimmPredictor | ConfigPredictor
"""A predictor of either kind."""


def load_predictor(
    model: str | None = None,
    config: str | Path | None = None,
    checkpoint: str | Path | None = None,
    *,
    pretrained: bool = True,
    score_thr: float = 0.3,
    device: str | None = None,
    options: dict | None = None,
    scale: float | None = None,
    tiles: int | None = None,
    overlap: float = 0.2,
    **shared: Any,
) -> Predictor:
    """Return the `TimmPredictor` of a model's name, or the `ConfigPredictor` of a config and its checkpoint.

    device: by default a GPU if there is one. shared: img_size and topk. Raises ValueError or FileNotFoundError for
    arguments that cannot be used.
    """
    if (model is None) == (config is None):
        raise ValueError("Give either --model, or --config and --checkpoint.")
    if model is not None and (options or scale is not None or tiles is not None):
        raise ValueError(f"--cfg-options, --scale and --tiles must come with --config, got --model {model}.")
    if config is not None and checkpoint is None:
        raise ValueError(f"--checkpoint must be given with --config {config}.")
    at_least("topk", shared.get("topk", 1))
    shared["device"] = device or ("cuda" if torch.cuda.is_available() else "cpu")
    require_device(shared["device"])
    if model is not None:
        return TimmPredictor(model, checkpoint=checkpoint, pretrained=pretrained, **shared)
    of_config = dict(score_thr=score_thr, options=options, scale=scale, tiles=tiles, overlap=overlap)
    return ConfigPredictor(config, checkpoint, **of_config, **shared)
