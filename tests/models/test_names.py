"""Names of models: what timm knows passes, and a mistake is answered with the names that are near."""

import pytest

from soft_vit.models.names import require_known


@pytest.mark.parametrize("name", ["soft_pico", "soft_pico.shapes", "resnet18", "hf-hub:owner/name"])
def test_known(name):
    require_known(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("soft_pica", "mean soft_pico"),
        ("soft_pica.shapes", "mean soft_pico"),
        ("", "choose a name of timm.list_models"),
    ],
)
def test_unknown(name, hint):
    with pytest.raises(ValueError, match=f"^timm has no model {name!r}; .*{hint}"):
        require_known(name)
