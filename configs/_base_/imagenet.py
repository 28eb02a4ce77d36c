# ImageNet-1k with the published augmentation, by timm's own functions. The folder is given on the command line:
#   --cfg-options data_root=/path/to/imagenet
# In it lie train/ and val/ with a folder for each class; or train.tar, val.zip and so on; or val/ without folders and
# val.txt with a file name and a class a line.
data_root = None
# These two reach the model, its batches and the pipelines, which leave them open: --cfg-options image_size=192
# num_classes=100
num_classes = 1000
image_size = 224

# mean and std here, and crop_pct, crop_mode and interpolation of the test pipeline, are those that the weights of
# load_from note, or else ImageNet's; a config may set them.
data_preprocessor = dict(
    type="RecipeDataPreprocessor",
    num_classes=num_classes,
    reprob=0.25,
    mixup=0.8,
    cutmix=1.0,
    smoothing=0.1,
)

train_pipeline = [
    # timm leaves the colour jitter out where RandAugment is on.
    dict(
        type="TimmAugment",
        auto_augment="rand-m9-mstd0.5-inc1",
        color_jitter=0.4,
        interpolation="bicubic",
    ),
    dict(type="PackInputs"),
]
test_pipeline = [
    dict(type="LoadedImage"),
    dict(type="TimmEvalCrop"),
    dict(type="PackInputs"),
]

train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    collate_fn=dict(type="collate_labels"),
    dataset=dict(type="ImageTree", split="train", pipeline=train_pipeline),
    # Repeated augmentation: dict(type="RepeatAugSampler", num_repeats=3, shuffle=True).
    sampler=dict(type="DefaultSampler", shuffle=True),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type="default_collate"),
    dataset=dict(type="ImageTree", split="val", test_mode=True, pipeline=test_pipeline),
    sampler=dict(type="DefaultSampler", shuffle=False),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="ClassificationMetric", topk=(1, 5))
test_evaluator = val_evaluator
val_cfg = dict()
test_cfg = dict()
