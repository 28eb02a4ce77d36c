# ADE20K (SceneParsing, 150 classes) at 512 x 512 as mmseg augments and tests it. The folder is given when it runs:
#   --cfg-options data_root=/path/to/ADEChallengeData2016
# In it lie images/{training,validation}, annotations/{training,validation} and objectInfo150.txt.
data_root = None
num_classes = 150
image_size = (512, 512)

# mean and std are those of the backbone's weights.
data_preprocessor = dict(type="SegmentationPreprocessor", size=image_size)

train_pipeline = [
    dict(type="SegRandomResize", scale=image_size, max_ratio=4, ratio_range=(0.5, 2.0)),
    dict(type="SegRandomCrop", crop_size=image_size, cat_max_ratio=0.75),
    dict(type="SegRandomFlip", prob=0.5),
    dict(type="SegPhotometricDistortion"),
    dict(type="PackSegmentation"),
]
test_pipeline = [
    dict(type="SegResize", scale=image_size, max_ratio=4),
    dict(type="PackSegmentation"),
]

# 8 processes of 2.
train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
    dataset=dict(
        type="LabelMapTree", data_root=None, split="training", reduce_zero_label=True, pipeline=train_pipeline
    ),
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="pseudo_collate"),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
    dataset=dict(
        type="LabelMapTree",
        data_root=None,
        split="validation",
        reduce_zero_label=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="pseudo_collate"),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="SegmentationMetric")
test_evaluator = val_evaluator
val_cfg = dict()
test_cfg = dict()
