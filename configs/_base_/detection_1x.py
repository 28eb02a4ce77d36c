# The 1x schedule that PVT's detectors were published with (arXiv 2102.12122, Sec. 5.2, and their configs): AdamW, 12
# epochs of COCO in batches of 16 (8 processes of 2 images), 500 steps of warm-up, a tenth of the rate after epochs 8
# and 11. Their code trains Mask R-CNN at twice the rate of the paper, optim_wrapper.optimizer.lr=2e-4.
_base_ = ["detection.py", "coco.py"]

# min_size: of the shorter side; several, such as model.min_size=(480,512,544,576,608,640,672,704,736,768,800), make the
# training draw one for each image, and testing takes the last.
model = dict(
    backbone=dict(max_bottleneck=(7, 7), drop_path_rate=0.1),
    num_classes=80,
    min_size=800,
    max_size=1333,
)

train_cfg = dict(type="ExactEpochLoop", max_epochs=12, val_interval=1)
optim_wrapper = dict(type="SafeOptimWrapper", optimizer=dict(type="AdamW", lr=1e-4, weight_decay=1e-4))
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type="MultiStepLR", by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
# The batch that the learning rate belongs to; `--auto-scale-lr` scales it for another one.
auto_scale_lr = dict(base_batch_size=16, enable=False)
