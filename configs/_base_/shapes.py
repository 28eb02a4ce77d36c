# The generated shapes at 64 pixels. Validation and test read the same held-out images.
image_size = 64
num_classes = 10

data_preprocessor = dict(mean=[127.5, 127.5, 127.5], std=[64.0, 64.0, 64.0], to_rgb=False, num_classes=num_classes)

# Every shape is its own mirror image, so a flipped one is a new sample of the same class.
train_pipeline = [
    dict(type="RandomFlip", prob=[0.25, 0.25, 0.25], direction=["horizontal", "vertical", "diagonal"]),
    dict(type="PackInputs"),
]
test_pipeline = [dict(type="LoadedImage"), dict(type="PackInputs")]

train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    dataset=dict(type="ShapesDataset", split="train", length=10000, pipeline=train_pipeline),
    sampler=dict(type="DefaultSampler", shuffle=True),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=0,
    dataset=dict(type="ShapesDataset", split="test", length=1000, pipeline=test_pipeline),
    sampler=dict(type="DefaultSampler", shuffle=False),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="ClassificationMetric", topk=(1,))
test_evaluator = val_evaluator
val_cfg = dict()
test_cfg = dict()
