# python tools/train.py configs/finetune/soft_tiny_imagefolder_384.py --cfg-options data_root=/path/to/images
# As soft_tiny_imagefolder.py, at 384 pixels; images are tested whole instead of their middle.
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/finetune.py"]

num_classes = None
image_size = 384
model = dict(model_name="soft_tiny")
load_from = "timm://soft_tiny"

# Milder than from scratch; and small data sets have no image to lose.
data_preprocessor = dict(num_classes=num_classes, reprob=0.1, mixup=0.0, cutmix=0.0, smoothing=0.0)
test_pipeline = [
    dict(type="LoadedImage"),
    dict(type="TimmEvalCrop", crop_pct=1.0),
    dict(type="PackInputs"),
]
train_dataloader = dict(batch_size=16, drop_last=False)
val_dataloader = dict(batch_size=32, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator
