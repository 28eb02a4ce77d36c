# Cityscapes (19 classes) in crops of 1024 x 1024, tested on whole images. The folder is given when it runs:
#   --cfg-options data_root=/path/to/cityscapes
# In it lie leftImg8bit/{train,val} and gtFine/{train,val}, with the `labelIds` of the annotations as they are released.
data_root = None
num_classes = 19
image_size = (1024, 1024)

# mean and std are those of the backbone's weights.
data_preprocessor = dict(type="SegmentationPreprocessor", size=image_size)

train_pipeline = [
    dict(type="SegRandomResize", scale=(2048, 1024), ratio_range=(0.5, 2.0)),
    dict(type="SegRandomCrop", crop_size=image_size, cat_max_ratio=0.75),
    dict(type="SegRandomFlip", prob=0.5),
    dict(type="SegPhotometricDistortion"),
    dict(type="PackSegmentation"),
]

# 8 processes of 1.
train_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
    dataset=dict(type="LabelMapTree", data_root=None, split="train", labels="cityscapes", pipeline=train_pipeline),
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
        split="val",
        labels="cityscapes",
        test_mode=True,
        pipeline=[dict(type="PackSegmentation")],
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="pseudo_collate"),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="SegmentationMetric")
test_evaluator = val_evaluator
val_cfg = dict()
test_cfg = dict()
