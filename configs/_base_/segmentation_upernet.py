# UPerNet on ADE20K as mmseg trains it for Swin and pyramids like it (arXiv 2103.14030, Appendix A2.3): AdamW, 160,000
# iterations in batches of 16, 1,500 of warm-up, then a linear decay; no weight decay on norms and position embeddings.
# A config adds the backbone.
model = dict(
    type="TimmSegmentor",
    num_classes=150,
    backbone=dict(max_bottleneck=(7, 7), drop_path_rate=0.3),
    decoder=dict(kind="upernet", channels=512),
    # The third map, of stride 16.
    auxiliary=dict(index=2, channels=256, num_convs=1, loss_weight=0.4),
    test_cfg=dict(mode="slide", crop_size=(512, 512), stride=2 / 3),
)

train_cfg = dict(type="ExactIterLoop", max_iters=160000, val_interval=16000)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=dict(pos_embed=dict(decay_mult=0.0))),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", power=1.0, eta_min=0.0, by_epoch=False, begin=1500),
]
auto_scale_lr = dict(base_batch_size=16)
# Two images in a process are too few for BatchNorm's statistics; on one GPU this changes nothing.
sync_bn = "torch"
