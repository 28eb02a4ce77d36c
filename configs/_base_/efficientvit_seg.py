# How EfficientViT's segmentation models are trained here. The authors publish that they use AdamW, cosine decay and
# ImageNet weights in the backbone (arXiv 2205.14756), and neither rates nor schedule, crops, batch or loss. The rest is
# ours: what SegFormer and SegNeXt use, with which the paper compares. 160,000 iterations, AdamW 6e-5 and ten times as
# much for the head, weight decay 0.01 except in norms of the backbone, 1,500 iterations of warm-up. A config adds data
# and channels.
model = dict(
    type="TimmSegmentor",
    backbone=dict(drop_path_rate=0.1),
    decoder=dict(kind="efficientvit"),
    dropout=0.0,
    test_cfg=dict(mode="whole"),
)

train_cfg = dict(type="ExactIterLoop", max_iters=160000, val_interval=16000)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=dict(decoder=dict(lr_mult=10.0), head=dict(lr_mult=10.0))),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=False, begin=1500),
]
sync_bn = "torch"
