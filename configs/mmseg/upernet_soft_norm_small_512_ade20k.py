# tools/dist_train.sh configs/mmseg/upernet_soft_norm_small_512_ade20k.py 8
# mmseg's UPerNet (arXiv 1807.10221) on this backbone; pip install -e '.[mmdet]' installs it without a compiler.
# 54 M parameters. Published: mIoU 46.2 (arXiv 2207.03341); this code has not been measured on ADE20K.
# Another file of weights, released or timm://NAME: --cfg-options model.backbone.init_cfg.checkpoint=FILE
# The medium size (published 48.0): model.backbone.arch=soft_norm_medium model.decode_head.in_channels=64,128,288,512
#   model.auxiliary_head.in_channels=288
_base_ = ["../_base_/default_runtime.py"]
default_scope = "mmseg"
# mmcv_ext comes first: it stands in for the compiled part of mmcv where there is none.
custom_imports = dict(
    imports=["soft_vit.dense.mmcv_ext", "mmseg", "soft_vit.engine", "soft_vit.dense"], allow_failed_imports=False
)

default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=16000),
    visualization=dict(type="SegVisualizationHook"),
)
log_processor = dict(by_epoch=False)
visualizer = dict(type="SegLocalVisualizer")
env_cfg = dict(cudnn_benchmark=True, mp_cfg=dict(opencv_num_threads=0))

crop_size = (512, 512)
norm_cfg = dict(type="SyncBN", requires_grad=True)

model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(
        type="SegDataPreProcessor",
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        size=crop_size,
        pad_val=0,
        seg_pad_val=255,
    ),
    backbone=dict(
        type="SOFT",
        arch="soft_norm_small",
        drop_path_rate=0.3,
        init_cfg=dict(type="Pretrained", checkpoint="work_dirs/soft_norm_small/epoch_300.pth"),
    ),
    decode_head=dict(
        type="UPerHead",
        in_channels=[64, 128, 320, 512],
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=dict(
        type="FCNHead",
        in_channels=320,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=0.4),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="slide", crop_size=crop_size, stride=(341, 341)),
)

# ADE20K with 150 classes in data/ade/ADEChallengeData2016/{images,annotations}/{training,validation}: crops of 512
# pixels, tested with the shorter side at 512.
dataset_type = "ADE20KDataset"
data_root = "data/ade/ADEChallengeData2016"

train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="RandomResize", scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type="RandomCrop", crop_size=crop_size, cat_max_ratio=0.75),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PhotoMetricDistortion"),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(2048, 512), keep_ratio=True),
    # The label map stays at its own size.
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="PackSegInputs"),
]

train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator

# UPerNet's schedule on pyramids (arXiv 2103.14030, Appendix A2.3): 160,000 steps in batches of 16, 1,500 of warm-up,
# then a linear decay; no weight decay of norms and embeddings.
train_cfg = dict(by_epoch=False, max_iters=160000, val_interval=16000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")

optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys=dict(pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)),
    ),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", eta_min=0.0, power=1.0, by_epoch=False, begin=1500, end=160000),
]
# The batch of the learning rate; `--auto-scale-lr` scales the rate to another batch.
auto_scale_lr = dict(base_batch_size=16, enable=False)
