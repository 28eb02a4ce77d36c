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


def test_a_split_has_everything():
    scenes = [draw_scene(0, index, 64) for index in range(120)]
    assert any(not scene.instances for scene in scenes)
    assert any(instance.crowd for scene in scenes for instance in scene.instances)
    assert max(len(scene.instances) for scene in scenes) == 7
    counts = np.bincount([i.label for scene in scenes for i in scene.instances], minlength=10)
    assert counts.min() > 0.5 * counts.mean()
