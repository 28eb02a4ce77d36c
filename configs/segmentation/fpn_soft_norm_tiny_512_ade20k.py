# tools/dist_train.sh configs/segmentation/fpn_soft_norm_tiny_512_ade20k.py 8 \
#     --cfg-options data_root=/path/to/ADEChallengeData2016 \
#     model.backbone.checkpoint_path=work_dirs/soft_norm_tiny/epoch_300.pth
# Semantic FPN as PVT trains it (arXiv 2102.12122, Sec. 5.3): AdamW, 80,000 iterations in batches of 16, rate 1e-4 that
# falls by a polynomial of power 0.9, images tested whole. 14.5 M parameters; no published figure, not trained here.
_base_ = ["../_base_/segmentation.py", "../_base_/ade20k.py"]

model = dict(
    type="TimmSegmentor",
    num_classes=150,
    backbone=dict(model_name="soft_norm_tiny", max_bottleneck=(7, 7), drop_path_rate=0.1),
    decoder=dict(kind="fpn", channels=128, pyramid_channels=256),
    test_cfg=dict(mode="whole"),
)

train_cfg = dict(type="ExactIterLoop", max_iters=80000, val_interval=8000)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, weight_decay=1e-4),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=dict(pos_embed=dict(decay_mult=0.0))),
)
param_scheduler = [dict(type="PolyLR", power=0.9, eta_min=0.0, by_epoch=False)]
auto_scale_lr = dict(base_batch_size=16)
sync_bn = "torch"

default_hooks = dict(checkpoint=dict(interval=8000))
