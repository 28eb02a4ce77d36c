# Mask R-CNN (arXiv 1703.06870) on maps of stride 4 to 32, with P6 for the proposals.
_base_ = "detection_1x.py"

model = dict(type="TorchvisionMaskRCNN")
train_dataloader = dict(dataset=dict(masks=True))
val_dataloader = dict(dataset=dict(masks=True))
test_dataloader = val_dataloader
val_evaluator = dict(kinds=["bbox", "segm"])
test_evaluator = val_evaluator
