# python tools/make_shapes.py data/shapes_coco --task coco
# python tools/train.py configs/mmdet/retinanet_soft_pico_shapes.py
# A small RetinaNet on generated images: mmdet on a CPU, without a compiled mmcv.
_base_ = [
    "_base_/default_runtime.py",
    "_base_/shapes.py",
    "_base_/schedule_1x.py",
    "_base_/retinanet_fpn.py",
]

model = dict(
    backbone=dict(arch="soft_pico", drop_path_rate=0.0),
    neck=dict(in_channels=[64, 128, 160], out_channels=64),
    bbox_head=dict(num_classes=10, in_channels=64, stacked_convs=1, feat_channels=64),
)
val_evaluator = dict(metric="bbox")
test_evaluator = val_evaluator

optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=10.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=20),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
