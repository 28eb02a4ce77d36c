"""A small model of each family under a detector and a segmentor: a step of training and a test."""

import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from models.zoo.families import SMALL

from soft_vit.dense.detection.retinanet import TorchvisionRetinaNet
from soft_vit.dense.segmentation.segmentor import TimmSegmentor

# What a feature pyramid needs.
PYRAMIDS = [family for family, (_, small) in SMALL.items() if "embed_dims" in small]


@pytest.fixture(params=PYRAMIDS)
def backbone(request):
    name, small = SMALL[request.param]
    return {"model_name": name, **small}


def test_retinanet(backbone):
    model = TorchvisionRetinaNet(backbone, num_classes=3, pyramid_channels=8, head_convs=1, min_size=96, max_size=112)
    sample = BaseDataElement(metainfo={"ori_shape": (90, 104), "img_id": 0})
    boxes = torch.tensor([[8.0, 8.0, 60.0, 70.0]])
    sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([1]))
    x = torch.rand(3, 90, 104)
    losses = model([x], [sample], mode="loss")
    sum(losses.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    (result,) = model.eval()([x], [sample], mode="predict")
    assert result.pred_instances.bboxes.shape[1] == 4


def test_upernet(backbone):
    model = TimmSegmentor(backbone, dict(kind="upernet", channels=8), num_classes=5, auxiliary=dict(channels=8))
    sample = BaseDataElement()
    sample.gt_sem_seg = PixelData(data=torch.randint(0, 5, (1, 72, 104), dtype=torch.uint8))
    losses = model(torch.randn(2, 3, 72, 104), [sample, sample], mode="loss")
    sum(losses.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 3, 65, 97)).shape == (1, 5, 65, 97)
