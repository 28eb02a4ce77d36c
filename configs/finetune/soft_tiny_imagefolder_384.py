# tools/dist_train.sh configs/finetune/soft_tiny_imagefolder_384.py 1 --cfg-options data_root=/path/to/images \
#     model.num_classes=37 load_from=work_dirs/soft_tiny/epoch_300.pth
# As soft_tiny_imagefolder.py, at 384 pixels; images are tested whole instead of their middle.
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/finetune.py"]

image_size = 384
model = dict(model_name="soft_tiny", img_size=image_size)
load_from = "timm://soft_tiny"

# Milder than from scratch; and small data sets have no image to lose.
data_preprocessor = dict(reprob=0.1, mixup=0.0, cutmix=0.0, smoothing=0.0)
train_pipeline = [
    dict(type="TimmAugment", img_size=image_size, auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic"),
    dict(type="PackInputs"),
]
test_pipeline = [
    dict(type="LoadedImage"),
    dict(type="TimmEvalCrop", img_size=image_size, crop_pct=1.0, interpolation="bicubic"),
    dict(type="PackInputs"),
]
train_dataloader = dict(batch_size=32, drop_last=False, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=32, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator
