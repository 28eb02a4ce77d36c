# python tools/data/make_shapes.py data/shapes_coco --task coco
# python tools/train.py configs/mmdet/mask_rcnn_soft_pico_shapes.py
# A small Mask R-CNN on generated images: mmdet on a CPU, without a compiled mmcv.
_base_ = ["mask_rcnn_soft_norm_tiny_fpn_1x_coco.py"]

model = dict(
    backbone=dict(arch="soft_pico", drop_path_rate=0.0, init_cfg=None),
    neck=dict(in_channels=[32, 64, 128, 160], out_channels=64),
    rpn_head=dict(in_channels=64, feat_channels=64),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(num_classes=10, in_channels=64, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(num_classes=10, num_convs=2, in_channels=64, conv_out_channels=64),
    ),
    train_cfg=dict(rcnn=dict(sampler=dict(num=128))),
)

data_root = "data/shapes_coco/"
metainfo = dict(classes=("circle", "triangle", "square", "star", "ring", "cross", "bar", "crescent", "heart", "arrow"))
# A mirrored shape is a shape of the same class.
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "flip", "flip_direction")),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    # Keeps the size, and notes the factor by which predictions return to it.
    dict(type="Resize", scale_factor=1.0),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    batch_sampler=None,
    dataset=dict(data_root=data_root, metainfo=metainfo, filter_cfg=dict(min_size=0), pipeline=train_pipeline),
)
val_dataloader = dict(
    # mmdet pads a batch to its largest image, which changes what attention sees of the others.
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=data_root + "annotations/instances_val2017.json")
test_evaluator = val_evaluator

optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=10.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=20),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
