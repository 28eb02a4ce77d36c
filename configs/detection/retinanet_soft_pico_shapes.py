# python tools/train.py configs/detection/retinanet_soft_pico_shapes.py
# A first detector, of 2.2 M parameters, on 200 generated images; it begins with the weights of soft_pico.shapes.
#   python tools/data/make_shapes.py data/shapes_coco --task coco
# 8 minutes of CPU time on one thread, with its tests; box AP .632, AP50 .853 on 100 test images (seed 0).
_base_ = ["../_base_/detection.py", "../_base_/coco_shapes.py"]

model = dict(
    type="TorchvisionRetinaNet",
    backbone=dict(
        model_name="soft_pico",
        max_bottleneck=(7, 7),
        norm_eval=True,
        pretrained=True,
    ),
    num_classes=10,
    pyramid_channels=96,
    head_convs=2,
    # Training draws one for each image, testing takes the last.
    min_size=(192, 208, 240, 256, 224),
    max_size=320,
    image_mean=[0.5, 0.5, 0.5],
    image_std=[0.25, 0.25, 0.25],
)

# Many small steps: 200 images are few, and the heads begin with nothing.
train_dataloader = dict(batch_size=2)
train_cfg = dict(type="ExactEpochLoop", max_epochs=28, val_interval=7)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=8e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(custom_keys={"backbone.body": dict(lr_mult=0.5)}),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=1, convert_to_iter_based=True),
]
