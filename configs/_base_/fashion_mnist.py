# Fashion-MNIST by name: 60,000 training and 10,000 test images of 28 pixels in ten classes, enlarged. The first run
# downloads the files to data_root. Debian's dataset-fashion-mnist has them too, unzipped into FashionMNIST/raw there.
_base_ = "cifar.py"

data_root = "data"
image_size = 56

data_preprocessor = dict(
    mean=[72.9, 72.9, 72.9],
    std=[90.0, 90.0, 90.0],
    reprob=0.0,
    mixup=0.0,
    cutmix=0.0,
    smoothing=0.1,
)
train_pipeline = [
    dict(type="TimmAugment", scale=(0.8, 1.0), ratio=(0.85, 1.18), color_jitter=None, interpolation="bilinear"),
    dict(type="PackInputs"),
]
test_pipeline = [dict(type="TimmEvalCrop", crop_pct=1.0, interpolation="bilinear"), dict(type="PackInputs")]

_data = dict(name="torch/fashion_mnist", data_root=data_root)
_loading = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(**_loading, batch_size=64, dataset=dict(**_data, pipeline=train_pipeline))
val_dataloader = dict(**_loading, dataset=dict(**_data, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=25, val_interval=5)
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=1, convert_to_iter_based=True),
]
