# python tools/data/make_shapes.py data/shapes_ade --task ade
# python tools/train.py configs/mmseg/upernet_soft_pico_shapes.py
# A small UPerNet on generated images: mmseg on a CPU, without a compiled mmcv.
_base_ = ["upernet_soft_norm_small_512_ade20k.py"]

model = dict(
    data_preprocessor=dict(size=(256, 256)),
    backbone=dict(arch="soft_pico", drop_path_rate=0.0, init_cfg=None),
    decode_head=dict(in_channels=[32, 64, 128, 160], channels=64, num_classes=11),
    auxiliary_head=dict(in_channels=128, channels=64, num_classes=11),
    test_cfg=dict(mode="whole"),
)

dataset_type = "BaseSegDataset"
data_root = "data/shapes_ade"
metainfo = dict(
    classes=("background", "circle", "triangle", "square", "star", "ring", "cross", "bar", "crescent", "heart", "arrow")
)
# A mirrored shape is a shape of the same class.
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="PackSegInputs"),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        reduce_zero_label=True,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        type=dataset_type, data_root=data_root, metainfo=metainfo, reduce_zero_label=True, pipeline=test_pipeline
    ),
)
test_dataloader = val_dataloader

train_cfg = dict(max_iters=500, val_interval=250)
default_hooks = dict(checkpoint=dict(interval=250))
optim_wrapper = dict(optimizer=dict(lr=2e-3), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=20),
    dict(type="PolyLR", eta_min=0.0, power=1.0, by_epoch=False, begin=20, end=500),
]
