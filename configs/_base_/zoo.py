# The recipe that families of the zoo share, after Swin's: 300 epochs of AdamW at batch 1024, as published.
# A config adds the name of its model. Augmentation stands in imagenet.py.
_base_ = ["default_runtime.py", "imagenet.py"]

model = dict(
    type="TimmTrainClassifier",
    # Targets are mixed and smoothed with the images.
    loss=dict(type="CrossEntropyLoss", use_soft=True),
)

train_cfg = dict(type="ExactEpochLoop", max_epochs=300, val_interval=1)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    # No weight decay on vectors and on what the model itself exempts, as in timm.
    constructor="TimmOptimWrapperConstructor",
    # 5e-4 for every 512 images of a batch.
    optimizer=dict(type="AdamW", lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
)
# Twenty epochs of linear warm-up, then half a cosine to a hundredth.
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.01, by_epoch=True, begin=20, convert_to_iter_based=True),
]

# The batch that the learning rate belongs to: 8 processes of 128. `--auto-scale-lr` scales it for another one.
auto_scale_lr = dict(base_batch_size=1024, enable=False)
