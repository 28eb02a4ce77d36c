"""Segmentors and their metric."""

import numpy as np
import pytest
import timm
import torch
from engine.runs import CONFIGS, NARROW
from mmengine.structures import BaseDataElement, PixelData
from PIL import Image
from torch.nn import functional as F

from soft_vit.data.label_maps import label_set
from soft_vit.dense.segmentation import SegmentationMetric
from soft_vit.dense.segmentation.metric import confusion
from soft_vit.dense.segmentation.segmentor import TimmSegmentor
from soft_vit.dense.windows import Patch, Window, class_rows, resample, windows_of
from soft_vit.engine.evaluate import evaluate
from soft_vit.predict import load_predictor, predict_files
from soft_vit.probe.cost import image_memory, peak_memory
from soft_vit.weights.load import load_into

# Segmentors of any backbone and decoder: losses, gradients, sizes, and how they look at a picture.


DECODERS = {"upernet": {"channels": 16}, "fpn": {"channels": 32, "pyramid_channels": 16}}
DECODERS["efficientvit"] = {"channels": 16, "depth": 1, "out_expand": 2}


def segmentor(kind="upernet", **options):
    """Return a small segmentor of eleven classes."""
    backbone = {"model_name": "soft_pico", "max_bottleneck": (7, 7), "newton_iters": 2, **NARROW}
    options = {"auxiliary": {"index": 2, "channels": 16}, **options}
    return TimmSegmentor(backbone, {"kind": kind, **DECODERS[kind]}, 11, **options)


def labelled(*shape):
    """Return a sample of H x W pixels of eleven classes."""
    return BaseDataElement(gt_sem_seg=PixelData(data=torch.randint(0, 11, (1, *shape), dtype=torch.uint8)))


@pytest.mark.parametrize("kind", DECODERS)
def test_losses_are_float32_under_autocast_and_every_parameter_gets_a_gradient(kind):
    """DDP without find_unused_parameters waits for each of them."""
    model = segmentor(kind)
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(torch.randn(2, 3, 72, 104), [labelled(72, 104) for _ in range(2)], mode="loss")
    assert losses.keys() == {"loss_pixels", "loss_auxiliary"}
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    sum(losses.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("weights", [None, [0.25, *range(1, 11)]])
def test_the_loss_is_the_weighted_mean_over_labelled_pixels(weights):
    model = segmentor(auxiliary=None, dropout=0.0, class_weight=weights).eval()
    images, samples = torch.randn(2, 3, 64, 80), [labelled(64, 80) for _ in range(2)]
    for sample in samples:
        sample.gt_sem_seg.data[0, :20] = 255
    labels = torch.cat([sample.gt_sem_seg.data for sample in samples]).long()[:, 20:]
    weight = torch.tensor(weights or [1.0] * 11)[labels]
    single = -model(images)[:, :, 20:].log_softmax(1).gather(1, labels[:, None])[:, 0]
    expected = (single * weight).sum() / weight.sum()
    torch.testing.assert_close(model(images, samples, mode="loss")["loss_pixels"], expected)


def test_the_loss_of_a_batch_without_labels_is_zero():
    sample = labelled(64, 64)
    sample.gt_sem_seg.data[:] = 255
    assert sum(segmentor()(torch.randn(2, 3, 64, 64), [sample, sample], mode="loss").values()) == 0


@pytest.mark.parametrize("kind", DECODERS)
def test_each_pixel_of_an_original_of_any_size_gets_a_class(kind):
    model = segmentor(kind).eval()
    for size, original in (((64, 64), (64, 64)), ((65, 97), (50, 70)), ((97, 203), (130, 99)), ((7, 300), (8, 299))):
        sample = BaseDataElement(metainfo={"ori_shape": original})
        (found,) = model([torch.randn(3, *size)], [sample], mode="predict")
        data = found.pred_sem_seg.data
        assert (data.shape, data.dtype) == ((1, *original), torch.int64)
        assert set(data.unique().tolist()) <= set(range(11))
    # Maps lie where their pixels lie, as in an image that all strides divide.
    x = torch.randn(1, 3, 97, 71)
    torch.testing.assert_close(model.scores(x), model.scores(F.pad(x, (0, 25, 0, 31)))[..., :97, :71])


FLIPS = [
    ({}, True, [(), (-1,)]),
    ({}, ["vertical"], [(), (-2,)]),
    ({"mode": "slide", "crop_size": 192}, ("horizontal", "vertical"), [(), (-1,), (-2,), (-1, -2)]),
]


@pytest.mark.parametrize(("options", "flip", "axes"), FLIPS)
def test_several_scales_and_flips_are_averaged(options, flip, axes):
    """The probabilities of each view, mirrored back and brought to the size of the original."""
    model = segmentor(test_cfg={"scales": (0.75, 1.5), "flip": flip, **options}).eval()
    image, size = torch.randn(1, 3, 128, 128), (70, 101)
    total = torch.zeros(1, 11, *size)
    with torch.no_grad():
        for seen in (96, 192):
            view = F.interpolate(image, size=(seen, seen), mode="bilinear", antialias=True)
            scores = sum(model._map(view.flip(mirrored)).softmax(1).flip(mirrored) for mirrored in axes)
            total += F.interpolate(scores, size, mode="bilinear")
    found = model([image[0]], [BaseDataElement(metainfo={"ori_shape": size})], mode="predict")[0]
    assert (found.pred_sem_seg.data == total.argmax(1)).float().mean() > 0.999


BAD_OPTIONS = [
    ({"test_cfg": {"mode": "tile"}}, "tile"),
    ({"test_cfg": {"mode": "slide", "crop_size": 64, "stride": 65}}, "test_cfg.stride"),
    ({"decoder": {"kind": "fpn", "channels": 16}}, "divisible"),
    ({"decoder": {"kind": "fcn"}}, "decoder.kind.*'fcn'"),
    ({"decoder": {"kind": "fpn"}, "backbone": {"model_name": "soft_pico", "out_indices": (1, 2, 3)}}, "8, 16, 32"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD_OPTIONS)
def test_bad_options_are_refused(options, sentence):
    given = {"backbone": {"model_name": "soft_pico"}, "decoder": DECODERS["upernet"], "num_classes": 11, **options}
    with pytest.raises(ValueError, match=sentence):
        TimmSegmentor(**given)


# Released files of EfficientViT are those of its segmentors; a test counts what its maps say, and a drawing has the
# colours of the data set.

SLIM = {"widths": (8, 8, 16, 24, 32), "depths": (1, 0, 1, 1, 1), "head_dim": 8}


def released_efficientvit(neck: dict, name="efficientvit_seg_b1_cityscapes") -> tuple[torch.nn.Module, dict]:
    """Return a small timm model, whose features differ from image to image, and its weights as they are released."""
    torch.manual_seed(0)
    model = timm.create_model(name, **SLIM, neck=neck).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model, model.to_released(model.state_dict())


OF_B, OF_L = {"depth": 2, "out_expand": 4}, {"depth": 1, "block": "fused", "expand": 1}


@pytest.mark.parametrize(("size", "head_options", "classes"), [("b1", OF_B, 3), ("l1", OF_L, None)])
def test_a_released_file_becomes_a_segmentor(size, head_options, classes):
    """With the activation and eps of its backbone in the head."""
    name, decoder = f"efficientvit_seg_{size}_cityscapes", {"channels": 16, **head_options}
    model, released = released_efficientvit(decoder, name)
    given = TimmSegmentor({"model_name": name, **SLIM}, {"kind": "efficientvit", **decoder}, classes or 19).eval()
    report = load_into(given, released, "fit" if classes else "strict", strict=not classes)
    assert report.new == (["head.conv.weight", "head.conv.bias"] if classes else [])
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(given.decoder(given.backbone(x)), model.forward_features(x))
        if classes is None:
            torch.testing.assert_close(given(x), F.interpolate(model(x), size=(64, 96), mode="bicubic"))
            chosen = given.predict(x[0], BaseDataElement(metainfo={"ori_shape": (50, 71)})).pred_sem_seg.data
            scores = F.interpolate(model(x), size=(50, 71), mode="bicubic")[0]
            torch.testing.assert_close(scores.gather(0, chosen)[0], scores.amax(0))
    with pytest.raises(ValueError, match="TimmSegmentor"):
        load_into(given, released_efficientvit({**decoder, "depth": 3}, name)[1], "strict")


@pytest.mark.parametrize("scale", [None, 0.7])
def test_cityscapes_is_measured_and_drawn(tmp_path, monkeypatch, scale):
    """Whole images, of which one label is unknown to the 19 classes. What is drawn is what is measured."""
    decoder = {"channels": 16, "depth": 1, "out_expand": 2}
    timm_model, released = released_efficientvit(decoder)
    torch.save({"state_dict": released}, tmp_path / "released.pt")
    backbone, cfg = {"model_name": "efficientvit_seg_b1_cityscapes", **SLIM}, timm_model.pretrained_cfg
    model = TimmSegmentor(backbone, {"kind": "efficientvit", **decoder}, 19).eval()
    load_into(model, released, "strict")
    monkeypatch.chdir(tmp_path)
    stream, cities, truths, images = np.random.default_rng(0), label_set("cityscapes"), [], []
    for name in ("a/a_0", "b/b_1"):
        pixels, classes = (stream.integers(0, 255, (64, 96, 3)), stream.integers(0, 19, (64, 96)))
        values = np.array(cities.values)[classes]
        values[:9] = 6
        for folder, end, content in (("leftImg8bit", "leftImg8bit", pixels), ("gtFine", "gtFine_labelIds", values)):
            path = tmp_path / "data" / folder / "val" / f"{name}_{end}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(content.astype(np.uint8)).save(path)
        x = (torch.from_numpy(pixels / 255).float() - torch.tensor(cfg["mean"])) / torch.tensor(cfg["std"])
        with torch.no_grad():
            images.append(model(x.permute(2, 0, 1)[None]).argmax(1)[0])
        truths.append(torch.from_numpy(classes[9:]))
    config = CONFIGS / "segmentation" / "efficientvit_seg_b1_cityscapes.py"
    options = {f"model.backbone.{name}": value for name, value in SLIM.items()}
    options |= {f"model.decoder.{name}": value for name, value in decoder.items()}
    options |= {f"test_dataloader.{name}": value for name, value in (("num_workers", 0), ("persistent_workers", False))}
    root = str(tmp_path / "data")
    found = evaluate(config, str(tmp_path / "released.pt"), options={"data_root": root, **options}, scale=scale)

    how = {"checkpoint": tmp_path / "released.pt", "device": "cpu", "options": options, "scale": scale}
    predictor = load_predictor(config=config, **how)
    predict_files([tmp_path / "data/leftImg8bit"], lambda: predictor, tmp_path / "out", draw=False)
    table = torch.zeros(19, 19, dtype=torch.int64)
    for path, truth, image in zip(sorted((tmp_path / "out").rglob("*.classes.png")), truths, images, strict=True):
        with Image.open(path) as drawn:
            classes = np.asarray(drawn)
            assert np.array_equal(np.asarray(drawn.convert("RGB")), cities.colors[classes])
        # One or two pixels could have two classes of equal scores.
        assert ((classes != image.numpy()).sum() <= 2) == (scale is None)
        table += confusion(truth, torch.from_numpy(classes.copy())[9:], 19)
    expected = SegmentationMetric().compute_metrics(table)
    assert {name: found[name] for name in expected} == expected
    assert predictor.names == list(cities.names)


# Size, crop, stride and the first pixels of the windows, rows and columns.
PLACES = [((512, 683), (512, 512), (341, 341), [0], [0, 171]), ((100, 64), (64, 64), (48, 48), [0, 36], [0])]
PLACES += [((7, 9), (3, 4), (2, 3), [0, 2, 4], [0, 3, 5]), ((10, 10), (5, 5), (5, 5), [0, 5], [0, 5])]
PLACES += [((5, 20), (8, 8), (4, 4), [0], [0, 4, 8, 12]), ((3, 2), (8, 8), (4, 4), [0], [0])]


@pytest.mark.parametrize(("size", "crop", "stride", "rows", "columns"), PLACES)
def test_scores_are_weighted_means_over_windows(size, crop, stride, rows, columns, monkeypatch):
    """Of a network whose scores depend on the whole window, where mmseg puts the windows; in strips, and from a row."""
    image = torch.randn(3, *size, dtype=torch.float64)

    def network(part):
        return torch.stack([part[0] + part.mean(), part[1] ** 2 + 0.3])

    def weights(start, side, length):
        place = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        weight = torch.sin(torch.pi * place) ** 2
        weight[: side // 2 if start == 0 else 0] = 1
        weight[side // 2 if start + side == length else side :] = 1
        return weight

    total, windows, sides = torch.zeros(2, *size), [], [min(pair) for pair in zip(crop, size, strict=True)]
    for row in rows:
        for column in columns:
            place = slice(row, row + sides[0]), slice(column, column + sides[1])
            windows.append(Window(*place))
            weight = weights(row, sides[0], size[0])[:, None] * weights(column, sides[1], size[1])
            total[(slice(None), *place)] += network(image[(slice(None), *place)]) * weight
    assert windows_of(size, crop, stride) == windows

    def look(group):
        parts = [network(image[:, window.rows, window.columns]) for window in group]
        return [Patch(*pair, sides, "bilinear") for pair in zip(group, parts, strict=True)]

    for height, first in ((1000, 0), (3, 0), (3, size[0] // 2)):
        monkeypatch.setattr("soft_vit.dense.windows._STRIP_BYTES", 4 * 2 * height * size[1])
        found = torch.cat([*class_rows(windows, look, size, size, 2, first=first)])
        assert (found == total.argmax(0)[first:]).all()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("length", [3, 20, 61])
def test_places_are_those_of_interpolate(mode, length):
    values = torch.randn(2, 20, 7, dtype=torch.float64)
    places = (torch.arange(length, dtype=torch.float64) + 0.5) * (20 / length) - 0.5
    expected = F.interpolate(values[None], size=(length, 7), mode=mode)[0]
    torch.testing.assert_close(resample(values, -2, places, mode), expected, rtol=1e-12, atol=1e-12)


def changes_at_seams(model, image, sides) -> float:
    """Return how often neighbouring pixels differ in class across borders of windows, over how often elsewhere."""
    with torch.no_grad():
        classes = torch.cat([*model.strips(image, image.shape[1:])])
    at_seams, elsewhere = [], []
    for axis, length in enumerate(classes.shape):
        ends = {i for window in model._windows(image.shape[1:]) for i in (window[axis].start, window[axis].stop)}
        differs = (classes.diff(dim=axis) != 0).float().mean(1 - axis)
        seams = torch.tensor([i in ends for i in range(1, length)])
        at_seams.append(differs[seams])
        elsewhere.append(differs[~seams])
    return float(torch.cat(at_seams).mean() / torch.cat(elsewhere).mean())


def test_windows_leave_no_seams(monkeypatch):
    """Plain means do."""
    torch.manual_seed(0)
    model = segmentor(test_cfg={"mode": "slide", "crop_size": 64}).eval()
    image = F.interpolate(torch.randn(1, 3, 24, 40), size=(331, 523), mode="bicubic")[0]
    assert changes_at_seams(model, image, 64) < 1.2
    monkeypatch.setattr("soft_vit.dense.windows.hann", lambda place, *ends: torch.ones_like(place))
    assert changes_at_seams(model, image, 64) > 2


def test_an_image_is_seen_as_a_whole_if_memory_allows(monkeypatch):
    """The estimate is exact where bytes grow with the pixels, and where they grow with their square."""
    image = torch.randn(1, 3, 768, 1024)

    def squared(x):
        tokens = x[0, 0, ::64, ::64].reshape(-1, 1)
        return tokens @ tokens.T

    for network in (lambda x: x * 2, squared):
        expected = 1.3 * (image.nbytes + peak_memory(lambda network=network: network(image), "cpu"))
        assert image_memory(network, 768 * 1024) == pytest.approx(expected, rel=1e-6)
    model = segmentor(test_cfg={"crop_size": 64}).eval()
    whole, parts = model._windows((64, 64)), model._windows((700, 900))
    assert (len(whole), len(parts)) == (1, 1)
    monkeypatch.setattr("soft_vit.dense.segmentation.segmentor._LARGE", 700 * 900 - 1)
    for free, count in ((2**40, 1), (2**20, 17 * 21)):
        monkeypatch.setattr("soft_vit.dense.segmentation.segmentor.free_memory", lambda device, free=free: free)
        assert len(model._windows((700, 900))) == count


# mIoU, mAcc and aAcc against sets of pixels, class by class.


def sets_of_pixels(truths, givens, num_classes):
    """The definitions, by sets of labelled pixels; nan where a set to divide by is empty."""
    labelled = {(i, *p) for i, t in enumerate(truths) for p in zip(*np.nonzero(t != 255), strict=True)}
    ious, accs, hits = [], [], 0
    for k in range(num_classes):
        has = {q for q in labelled if truths[q[0]][q[1:]] == k}
        got = {q for q in labelled if givens[q[0]][q[1:]] == k}
        both = len(has & got)
        hits += both
        ious.append(both / len(has | got) if has | got else np.nan)
        accs.append(both / len(has) if has else np.nan)
    return {"mIoU": 100 * np.nanmean(ious), "mAcc": 100 * np.nanmean(accs), "aAcc": 100 * hits / len(labelled)}


def sample(truth, given):
    pixels = {"gt_sem_seg": truth, "pred_sem_seg": given.astype(np.int64)}
    return {name: {"data": torch.from_numpy(values)[None]} for name, values in pixels.items()}


def metric_of(num_classes, **kwargs):
    metric = SegmentationMetric(**kwargs)
    metric.dataset_meta = {"classes": [f"class {k}" for k in range(num_classes)]}
    return metric


# Which classes occur and which are given, of seven.
OCCURRING = [(range(7), range(7)), (range(6), range(7)), (range(7), range(6)), ((0, 1, 5), (0, 1, 5))]


@pytest.mark.parametrize(("occurring", "given"), OCCURRING)
def test_figures_agree_with_sets_of_pixels(occurring, given):
    stream = np.random.default_rng(0)
    sizes = [(9, 7), (5, 11), (1, 13), (8, 8)]
    truths = [stream.choice([*occurring, 255], size).astype(np.uint8) for size in sizes]
    # Half of the pixels are right, where they can be.
    givens = [
        np.where((stream.random(t.shape) < 0.5) & np.isin(t, list(given)), t, stream.choice(list(given), t.shape))
        for t in truths
    ]
    metric, samples = metric_of(7), [sample(*pair) for pair in zip(truths, givens, strict=True)]
    metric.process(None, samples[:1])
    metric.process(None, samples[1:])
    assert metric.evaluate(len(sizes)) == pytest.approx(sets_of_pixels(truths, givens, 7), rel=1e-12)


def test_counts_stay_exact_beyond_float32():
    """2^24 + 1 pixels cannot be told from 2^24 in float32; a mean over images would not see the odd one."""
    metric = metric_of(2)
    # One wrong pixel of class 1, and 2^24 right ones of class 0 as `process` counts them.
    metric.process(None, [sample(np.ones((1, 1), np.uint8), np.zeros((1, 1), np.uint8))])
    metric.results.append((torch.tensor([0]), torch.tensor([2**24])))
    assert metric.evaluate(2)["aAcc"] == 100 * 2**24 / (2**24 + 1)


def test_an_image_that_another_process_has_counted_is_left_out():
    """A sampler fills up the last round, so that a process can see more images than its share."""
    metric = metric_of(2)
    right, wrong = np.zeros((3, 3), dtype=np.uint8), np.ones((3, 3), dtype=np.uint8)
    metric.process(None, [sample(right, right), sample(right, wrong)])
    assert metric.evaluate(1)["aAcc"] == 100


def test_a_class_beyond_those_of_the_data_is_refused():
    metric = metric_of(2)
    with pytest.raises(ValueError, match="2 as in the data, got class 2"):
        metric.process(None, [sample(np.zeros((3, 3), np.uint8), np.full((3, 3), 2, np.uint8))])
