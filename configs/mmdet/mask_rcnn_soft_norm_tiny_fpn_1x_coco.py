# tools/dist_train.sh configs/mmdet/mask_rcnn_soft_norm_tiny_fpn_1x_coco.py 8
# 33 M parameters. Published: box / mask AP 41.2 / 38.2 (arXiv 2207.03341); this code has not been measured on COCO.
# Other classification weights than those of configs/soft_norm_tiny.py, a released file or timm://NAME:
#   --cfg-options model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    "_base_/default_runtime.py",
    "_base_/coco_instance.py",
    "_base_/schedule_1x.py",
    "_base_/mask_rcnn_fpn.py",
]

model = dict(
    backbone=dict(
        arch="soft_norm_tiny",
        init_cfg=dict(type="Pretrained", checkpoint="work_dirs/soft_norm_tiny/epoch_300.pth"),
    ),
)
