# The 1x schedule with the optimizer of PVT (arXiv 2102.12122, Sec. 5.2, and mmdet's configs of it): 12 epochs in
# batches of 16, 500 steps of warm-up, a tenth of the rate after epochs 8 and 11. No decay of norms and embeddings.
train_cfg = dict(type="EpochBasedTrainLoop", max_epochs=12, val_interval=1)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")

optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=1e-4),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys=dict(pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)),
    ),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
# The batch that the learning rate belongs to; `--auto-scale-lr` scales it for another one.
auto_scale_lr = dict(base_batch_size=16, enable=False)
