# Mask R-CNN (arXiv 1703.06870) on maps of stride 4 to 32, with P6 for the proposals.
# min_size: of the shorter side; several, such as model.min_size=(480,512,544,576,608,640,672,704,736,768,800), make the
# training draw one for each image, and testing takes the last.
_base_ = "coco.py"

model = dict(
    type="TorchvisionMaskRCNN",
    backbone=dict(max_bottleneck=(7, 7), drop_path_rate=0.1),
    num_classes=80,
    min_size=800,
    max_size=1333,
    image_mean=[0.485, 0.456, 0.406],
    image_std=[0.229, 0.224, 0.225],
)

train_dataloader = dict(dataset=dict(masks=True))
val_dataloader = dict(dataset=dict(masks=True))
test_dataloader = val_dataloader
val_evaluator = dict(kinds=["bbox", "segm"])
test_evaluator = val_evaluator
