"""Trees that are no data set of images."""

import pytest

from soft_vit.engine.data.image_dataset import ImageTree
from soft_vit.engine.errors import UserError


@pytest.mark.parametrize(
    ("root", "error", "message"),
    [(None, UserError, "--cfg-options data_root=PATH"), ("/none", FileNotFoundError, "There is no folder /none")],
)
def test_mistakes(root, error, message):
    with pytest.raises(error, match=message):
        ImageTree(root)


def test_an_empty_class_is_the_users_error(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no images"):
        ImageTree(str(tmp_path))
