# tools/dist_train.sh configs/linearise/linear_vit_tiny_deit.py 8 --cfg-options data_root=/path/to/imagenet
# DeiT-tiny of timm (72.2 % top-1, arXiv 2012.12877, Table 5) with linear attention, on ImageNet-1k. It was not trained
# here. Another kind: model.model_name, such as performer_vit_tiny_patch16; a kind that lives on the map takes DeiT's
# class token next to it. Another ViT: model.teacher.model_name and a student of its size, or model.model_name of the
# teacher and model.swap=dict(kind=...).
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/linearise.py"]

model = dict(
    model_name="linear_vit_tiny_patch16",
    class_token=True,
    global_pool="token",
    phase1_epochs=5,
    teacher=dict(model_name="deit_tiny_patch16_224.fb_in1k", pretrained=True),
    loss=dict(type="CrossEntropyLoss", use_soft=True),
)
train_cfg = dict(max_epochs=35)
optim_wrapper = dict(
    constructor="TimmOptimWrapperConstructor",
    optimizer=dict(weight_decay=0.05),
)
param_scheduler = [
    dict(type="MultiStepLR", milestones=[5], gamma=0.2, by_epoch=True, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-6, by_epoch=True, begin=5, convert_to_iter_based=True),
]
