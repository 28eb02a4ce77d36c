# tools/dist_train.sh configs/detection/retinanet_soft_norm_large_fpn_1x_coco.py 8 --cfg-options data_root=PATH
# 74 M parameters, 12 epochs in batches of 16. Published for this backbone and schedule (arXiv 2207.03341): box AP
# 45.3. This code has not been measured on COCO. Classification weights to begin with, when they are not those of
# configs/soft_norm_large.py: model.backbone.checkpoint_path=FILE, a checkpoint of tools/train.py, a released file or
# timm://NAME; "" for none.
_base_ = "../_base_/retinanet_1x.py"

model = dict(backbone=dict(model_name="soft_norm_large", checkpoint_path="work_dirs/soft_norm_large/epoch_300.pth"))
