"""What `soft_vit.models` offers by name."""

import timm

import soft_vit.models
from soft_vit.models.folding import fold_batch_norm


def test_every_name_is_there_once():
    names = soft_vit.models.__all__
    assert len(set(names)) == len(names)
    assert all(hasattr(soft_vit.models, name) for name in names)
    assert set(soft_vit.models.MODELS) == set(timm.list_models(module="soft")) <= set(names)
    assert soft_vit.models.fold_batch_norm is fold_batch_norm
