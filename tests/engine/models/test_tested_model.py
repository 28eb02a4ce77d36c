"""A tested model, held against its images."""

from types import SimpleNamespace

import pytest

from soft_vit.data import CLASSES
from soft_vit.engine import UserError


@pytest.mark.parametrize(("own", "same_classes"), [(9, False), (9, True), (11, True)])
def test_classes_that_are_not_the_models(own, same_classes):
    from soft_vit.engine.models.tested_model import TestedModelHook

    model = SimpleNamespace(model=SimpleNamespace(num_classes=own))
    dataset = SimpleNamespace(metainfo={"classes": CLASSES})
    runner = SimpleNamespace(model=model, test_dataloader=SimpleNamespace(dataset=dataset))
    with pytest.raises(UserError, match=f"tells {own} classes apart and the test images have 10"):
        TestedModelHook(same_classes=same_classes).before_test(runner)
