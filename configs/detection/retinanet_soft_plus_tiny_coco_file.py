# python tools/train.py configs/detection/retinanet_soft_plus_tiny_coco_file.py --cfg-options \
#     data_root=/path/to/images ann_file=/path/to/annotations.json
# From random weights, on a folder of images and an annotation file in COCO's format. A tenth of the images is held out
# for validation (val_fraction). The classes are the categories of the file.
# More options: model.min_size=800 model.max_size=1333 for small objects, train_dataloader.batch_size=2 for less memory,
# model.backbone.checkpoint_path=FILE or timm://NAME to start from a classifier. The schedule is ours.
_base_ = ["../_base_/detection.py", "../_base_/coco.py"]

data_root = None
ann_file = None
# Counted.
num_classes = None
val_fraction = 0.1

model = dict(
    type="TorchvisionRetinaNet",
    num_classes=None,
    backbone=dict(model_name="soft_plus_tiny", max_bottleneck=(7, 7), drop_path_rate=0.1),
    pyramid_channels=128,
    # Of the shorter and the longer side; training draws one of the first for each image, testing takes the last.
    min_size=(320, 352, 384, 416, 448, 480),
    max_size=800,
)

_file = dict(ann_file=None, img_dir="")
train_dataloader = dict(
    batch_size=8,
    dataset=dict(held_out=False, **_file),
    sampler=dict(_delete_=True, type="InfiniteSampler", shuffle=True),
)
val_dataloader = dict(dataset=dict(held_out=True, **_file))
test_dataloader = val_dataloader

train_cfg = dict(type="ExactIterLoop", max_iters=12000, val_interval=1000)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=4e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(norm_decay_mult=0.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="CosineAnnealingLR", eta_min=1e-6, by_epoch=False, begin=500),
]
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=1000),
)
log_processor = dict(by_epoch=False)
