# python tools/train.py configs/segmentation/upernet_soft_plus_tiny_folder.py --cfg-options \
#     data_root=/path/to/images ann_dir=/path/to/masks
# From random weights, on a folder of images, NAME.jpg or of another format, and a folder of masks, NAME.png. A tenth of
# the images is held out for validation (val_fraction). classes.txt beside the images names the classes; without it,
# they are the values in the masks, where 255 means unlabelled, or in masks of 0 and 255 alone background and object.
# With data_root alone, the images lie as for ADE20K, see docs/data.md.
# More options: image_size=512 for finer details, train_dataloader.batch_size=4 for less memory,
# model.backbone.checkpoint_path=FILE or timm://NAME to start from a classifier. The schedule is ours.
_base_ = ["../_base_/segmentation.py", "../_base_/ade20k.py", "../_base_/segmentation_upernet.py"]

data_root = None
ann_dir = None
# Counted.
num_classes = None
val_fraction = 0.1
image_size = (256, 256)

model = dict(
    num_classes=None,
    backbone=dict(model_name="soft_plus_tiny", drop_path_rate=0.1),
    decoder=dict(channels=128),
    auxiliary=dict(channels=64),
)

train_dataloader = dict(batch_size=8, dataset=dict(ann_dir=None, held_out=False, reduce_zero_label=False))
val_dataloader = dict(dataset=dict(ann_dir=None, held_out=True, reduce_zero_label=False))
test_dataloader = val_dataloader

train_cfg = dict(max_iters=8000, val_interval=500)
optim_wrapper = dict(optimizer=dict(lr=5e-4, weight_decay=0.05), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="CosineAnnealingLR", eta_min=1e-6, by_epoch=False, begin=500),
]
sync_bn = None
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(checkpoint=dict(interval=500))
