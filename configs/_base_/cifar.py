# CIFAR-10 and CIFAR-100 by name; the first run downloads the files to data_root. Padded crops, flips and mixing, as is
# usual at 32 pixels; image_size=64 enlarges the images.
data_root = "data/cifar"
image_size = 32
num_classes = 10

data_preprocessor = dict(
    type="RecipeDataPreprocessor",
    mean=[125.3, 123.0, 113.9],
    std=[63.0, 62.1, 66.7],
    num_classes=num_classes,
    reprob=0.25,
    mixup=0.2,
    cutmix=1.0,
    smoothing=0.1,
)
train_pipeline = [
    dict(type="TimmAugment", scale=(0.5, 1.0), ratio=(0.9, 1.1), auto_augment="rand-m5-n2-inc1"),
    dict(type="PackInputs"),
]
test_pipeline = [dict(type="TimmEvalCrop", crop_pct=1.0), dict(type="PackInputs")]
train_dataloader = dict(
    batch_size=128,
    num_workers=4,
    persistent_workers=True,
    drop_last=True,
    collate_fn=dict(type="collate_labels"),
    dataset=dict(
        type="TimmDataset",
        name="torch/cifar10",
        data_root=data_root,
        split="train",
        download=True,
        pipeline=train_pipeline,
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
)
val_dataloader = dict(
    batch_size=256,
    num_workers=4,
    persistent_workers=True,
    collate_fn=dict(type="default_collate"),
    dataset=dict(
        type="TimmDataset",
        name="torch/cifar10",
        data_root=data_root,
        split="test",
        download=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
)
test_dataloader = val_dataloader
val_evaluator = dict(type="ClassificationMetric", topk=(1, 5))
test_evaluator = val_evaluator
val_cfg = dict()
test_cfg = dict()

model = dict(type="TimmTrainClassifier", loss=dict(type="CrossEntropyLoss", use_soft=True))
train_cfg = dict(type="ExactEpochLoop", max_epochs=200, val_interval=5)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    constructor="TimmOptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=5, convert_to_iter_based=True),
]
