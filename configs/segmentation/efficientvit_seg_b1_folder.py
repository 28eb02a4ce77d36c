# python tools/train.py configs/segmentation/efficientvit_seg_b1_folder.py --cfg-options data_root=/path/to/data \
#     num_classes=4 load_from=efficientvit_seg_b1_ade20k.pt
# Your images and masks: images/{training,validation}/NAME.jpg, annotations/{training,validation}/NAME.png, and the
# names of the classes in classes.txt. Values of a mask are classes from 0, and 255 where unlabelled. load_from takes
# the released backbone and what of the head does not depend on the classes;
# model.backbone.checkpoint_path=timm://efficientvit_b1.r224_in1k takes a classifier's backbone. The schedule is ours.
_base_ = "efficientvit_seg_b1_ade20k.py"

num_classes = 2
model = dict(num_classes=2)
train_cfg = dict(max_iters=8000, val_interval=1000)
train_dataloader = dict(batch_size=8, dataset=dict(reduce_zero_label=False, labels=None))
val_dataloader = dict(dataset=dict(reduce_zero_label=False, labels=None))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=1e-4))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=500),
    dict(type="CosineAnnealingLR", eta_min=0.0, by_epoch=False, begin=500),
]
sync_bn = None
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(checkpoint=dict(interval=1000))
