# The published ImageNet-1k recipe of SOFT (arXiv 2110.11945, arXiv 2207.03341): 300 epochs of AdamW at batch 1024.
# A config adds the name of its model. Augmentation stands in imagenet.py.
model = dict(
    type="TimmTrainClassifier",
    drop_path_rate=0.1,
    # Targets are mixed and smoothed with the images.
    loss=dict(type="CrossEntropyLoss", use_soft=True),
)

train_cfg = dict(type="ExactEpochLoop", max_epochs=300, val_interval=1)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    # No weight decay on vectors and on what the model itself exempts, as in timm.
    constructor="TimmOptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
# Ten epochs of linear warm-up, then half a cosine to the end of the run.
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=5e-5, by_epoch=True, begin=10, convert_to_iter_based=True),
]
# One minus timm's decay, 0.99996.
custom_hooks = [dict(type="EMAEvalHook", momentum=4e-5)]

# The batch that the learning rate belongs to: 8 processes of 128. `--auto-scale-lr` scales it for another one.
auto_scale_lr = dict(base_batch_size=1024, enable=False)
