# python tools/train.py configs/linearise/linear_vit_shapes.py
# The ViT of softmax_vit_shapes.py, which is trained first, with linear attention. Another kind: model.model_name.
_base_ = ["../_base_/default_runtime.py", "../_base_/shapes.py", "../_base_/linearise.py"]

_size = dict(img_size=64, patch_size=8, embed_dim=96, depth=4, num_heads=3, class_token=False, global_pool="avg")
_checkpoint = "work_dirs/softmax_vit_shapes/epoch_6.pth"
model = dict(
    model_name="linear_vit_tiny_patch16",
    teacher=dict(model_name="softmax_vit_tiny_patch16", checkpoint=_checkpoint, **_size),
    **_size,
)
train_dataloader = dict(dataset=dict(length=5000))
