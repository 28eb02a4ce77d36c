# A training run of seconds with everything in it that draws or remembers: 15 steps in 3 epochs of 5, checkpoints every
# second step and at every epoch, an average of the weights, mixup, cutmix, drop path, dropout, flips.
_base_ = ["../../configs/_base_/default_runtime.py", "../../configs/_base_/shapes.py"]

image_size = 32
model = dict(
    type="TimmTrainClassifier",
    model_name="soft_pico",
    num_classes=10,
    depths=[1, 1],
    embed_dims=[8, 16],
    num_heads=[1, 2],
    sr_ratios=[8, 4],
    drop_rate=0.1,
    drop_path_rate=0.3,
    loss=dict(type="CrossEntropyLoss", use_soft=True),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.8), dict(type="CutMix", alpha=1.0)]),
)
train_cfg = dict(by_epoch=True, max_epochs=3, val_interval=2)
train_dataloader = dict(batch_size=4, dataset=dict(length=19))
val_dataloader = dict(batch_size=6, dataset=dict(length=10))
test_dataloader = val_dataloader

optim_wrapper = dict(
    type="SafeOptimWrapper", optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.02), clip_grad=dict(max_norm=1.0)
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=1, end=3, convert_to_iter_based=True),
]
custom_hooks = [dict(type="EMAEvalHook", momentum=0.1), dict(type="SafeCheckpointHook", interval=2, by_epoch=False)]
default_hooks = dict(logger=dict(interval=1), watch=None)
visualizer = dict(vis_backends=[dict(type="LocalVisBackend")])
