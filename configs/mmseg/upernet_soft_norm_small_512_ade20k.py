# tools/dist_train.sh configs/mmseg/upernet_soft_norm_small_512_ade20k.py 8
# 54 M parameters. Published: mIoU 46.2 (arXiv 2207.03341); this code has not been measured on ADE20K.
# Other classification weights than those of configs/soft_norm_small.py, a released file or timm://NAME:
#   --cfg-options model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    "_base_/default_runtime.py",
    "_base_/ade20k.py",
    "_base_/schedule_160k.py",
    "_base_/upernet.py",
]

model = dict(
    backbone=dict(
        arch="soft_norm_small",
        init_cfg=dict(type="Pretrained", checkpoint="work_dirs/soft_norm_small/epoch_300.pth"),
    ),
)
