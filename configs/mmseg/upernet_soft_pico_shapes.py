# python tools/make_shapes.py data/shapes_ade --task ade
# python tools/train.py configs/mmseg/upernet_soft_pico_shapes.py
# A small UPerNet on generated images: mmseg on a CPU, without a compiled mmcv.
_base_ = [
    "_base_/default_runtime.py",
    "_base_/shapes.py",
    "_base_/schedule_160k.py",
    "_base_/upernet.py",
]

model = dict(
    data_preprocessor=dict(size=(256, 256)),
    backbone=dict(arch="soft_pico", drop_path_rate=0.0),
    decode_head=dict(in_channels=[32, 64, 128, 160], channels=64, num_classes=11),
    auxiliary_head=dict(in_channels=128, channels=64, num_classes=11),
    test_cfg=dict(mode="whole"),
)

train_cfg = dict(max_iters=500, val_interval=250)
default_hooks = dict(checkpoint=dict(interval=250))
optim_wrapper = dict(optimizer=dict(lr=2e-3), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=20),
    dict(type="PolyLR", eta_min=0.0, power=1.0, by_epoch=False, begin=20, end=500),
]
