# python tools/make_shapes.py data/shapes_ade --task ade
# python tools/train.py configs/segmentation/upernet_soft_pico_shapes.py \
#     --cfg-options model.backbone.checkpoint_path=work_dirs/soft_pico_shapes/epoch_5.pth
# A small UPerNet on generated images, from the weights of configs/demo/soft_pico_shapes.py.
_base_ = ["../_base_/default_runtime.py", "../_base_/ade20k_shapes.py"]
custom_imports = dict(imports=["soft_vit.engine", "soft_vit.dense.segmentation"], allow_failed_imports=False)

model = dict(
    type="TimmSegmentor",
    num_classes=11,
    backbone=dict(model_name="soft_pico", max_bottleneck=(7, 7), norm_eval=True),
    decoder=dict(kind="upernet", channels=64),
    auxiliary=dict(index=2, channels=64, num_convs=1, loss_weight=0.4),
    dropout=0.0,
    # Nine tenths of the pixels are background, the first class; at full weight it is all that a short run learns.
    class_weight=[0.3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    test_cfg=dict(mode="whole"),
)

train_cfg = dict(by_epoch=False, max_iters=1200, val_interval=400)
# A step of AdamW changes scores by the rate times the channels: with a tenth of the usual channels, ten times the rate.
_head = dict(lr_mult=10.0)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=8e-4, weight_decay=0.02),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        # Its longer name comes before that of other parts; what it has learnt would be lost at the full rate.
        custom_keys={"backbone.body": dict(lr_mult=0.5, decay_mult=0.0), "head": _head, "classifier": _head},
    ),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=False, begin=0, end=120),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=False, begin=120, end=1200),
]

default_hooks = dict(logger=dict(log_metric_by_epoch=False), checkpoint=dict(by_epoch=False, interval=400))
log_processor = dict(by_epoch=False)
