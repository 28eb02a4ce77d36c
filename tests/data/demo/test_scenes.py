import numpy as np
import pytest

from soft_vit.data.demo.scenes import draw_scene

SIZES = [96, (70, 131)]


@pytest.mark.parametrize("size", SIZES)
def test_scenes_are_what_they_say(size):
    height, width = (size, size) if isinstance(size, int) else size
    for index in range(20):
        scene = draw_scene(3, index, size)
        assert scene.image.shape == (height, width, 3)
        assert scene.image.dtype == np.uint8
        # A pixel shows one thing.
        assert sum(instance.mask.astype(int) for instance in scene.instances).max() <= 1 if scene.instances else True
        labels = scene.label_map
        for instance in scene.instances:
            assert instance.mask.shape == (height, width)
            assert instance.mask.any()
            assert (labels[instance.mask] == (0 if instance.crowd else 2 + instance.label)).all()
        assert (labels == 1).sum() == labels.size - sum(instance.mask.sum() for instance in scene.instances)


def inside(outline: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether each point lies inside a closed outline [P, 2]: a ray from it crosses an odd number of edges."""
    odd = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
    for (x0, y0), (x1, y1) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        if y0 != y1:
            odd ^= ((y0 <= y) != (y1 <= y)) & (x < x0 + (y - y0) / (y1 - y0) * (x1 - x0))
    return odd


def test_outlines_fill_to_the_mask():
    centers = (np.arange(96 * 4) + 0.5) / 4
    seen = 0
    for index in range(20):
        for instance in draw_scene(1, index, 96).instances:
            if instance.contours is None or len(instance.contours) != 1:
                continue
            share = inside(instance.contours[0], centers[None, :], centers[:, None])
            share = share.reshape(96, 4, 96, 4).mean(axis=(1, 3))
            # Pillow fills the subpixels on the outline too, so both may differ where about half of a pixel is covered.
            assert (np.abs(share - 0.5) <= 0.25)[(share >= 0.5) != instance.mask].all()
            seen += 1
    assert seen > 20


def test_a_split_has_everything():
    scenes = [draw_scene(0, index, 64) for index in range(120)]
    assert any(not scene.instances for scene in scenes)
    assert any(instance.crowd for scene in scenes for instance in scene.instances)
    assert max(len(scene.instances) for scene in scenes) == 7
    counts = np.bincount([i.label for scene in scenes for i in scene.instances], minlength=10)
    assert counts.min() > 0.5 * counts.mean()
