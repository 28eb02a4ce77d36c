# tools/dist_train.sh configs/segmentation/upernet_soft_norm_small_512_ade20k.py 8 \
#     --cfg-options data_root=/path/to/ADEChallengeData2016 \
#     model.backbone.checkpoint_path=work_dirs/soft_norm_small/epoch_300.pth
# UPerNet with 54.1 M parameters (published: 54 M); published mIoU 46.2 (arXiv 2207.03341). Not
# trained here. Several scales and mirrored images in a test:
#   --cfg-options model.test_cfg.flip=True "model.test_cfg.scales=(0.5,0.75,1.0,1.25,1.5,1.75)"
_base_ = ["../_base_/segmentation.py", "../_base_/ade20k.py", "../_base_/segmentation_upernet.py"]

model = dict(backbone=dict(model_name="soft_norm_small"))

default_hooks = dict(checkpoint=dict(interval=16000))
