# tools/dist_train.sh configs/mmdet/retinanet_soft_norm_medium_fpn_1x_coco.py 8
# 55 M parameters. Published: box AP 44.3 (arXiv 2207.03341); this code has not been measured on COCO.
# Other classification weights than those of configs/soft_norm_medium.py, a released file or timm://NAME:
#   --cfg-options model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    "_base_/default_runtime.py",
    "_base_/coco_detection.py",
    "_base_/schedule_1x.py",
    "_base_/retinanet_fpn.py",
]

model = dict(
    backbone=dict(
        arch="soft_norm_medium",
        init_cfg=dict(type="Pretrained", checkpoint="work_dirs/soft_norm_medium/epoch_300.pth"),
    ),
    neck=dict(in_channels=[128, 288, 512]),
)
