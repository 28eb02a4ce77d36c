# tools/dist_train.sh configs/mmseg/upernet_soft_norm_medium_512_ade20k.py 8
# 76 M parameters. Published: mIoU 48.0 (arXiv 2207.03341); this code has not been measured on ADE20K.
# Other classification weights than those of configs/soft_norm_medium.py, a released file or timm://NAME:
#   --cfg-options model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    "_base_/default_runtime.py",
    "_base_/ade20k.py",
    "_base_/schedule_160k.py",
    "_base_/upernet.py",
]

model = dict(
    backbone=dict(
        arch="soft_norm_medium",
        init_cfg=dict(type="Pretrained", checkpoint="work_dirs/soft_norm_medium/epoch_300.pth"),
    ),
    decode_head=dict(in_channels=[64, 128, 288, 512]),
    auxiliary_head=dict(in_channels=288),
)
