# python tools/train.py configs/linearise/softmax_vit_shapes.py
# The teacher of the demo: a small ViT with softmax attention on generated shapes of 64 pixels, 8 x 8 patches.
_base_ = ["../_base_/default_runtime.py", "../_base_/shapes.py"]

model = dict(
    type="TimmProgressClassifier",
    model_name="softmax_vit_tiny_patch16",
    num_classes=_base_.num_classes,
    img_size=_base_.image_size,
    patch_size=8,
    embed_dim=96,
    depth=4,
    num_heads=3,
    class_token=False,
    global_pool="avg",
    # timm's default is too small a start for so narrow a model.
    weight_init="jax",
)

train_cfg = dict(by_epoch=True, max_epochs=6, val_interval=1)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.02),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=1, convert_to_iter_based=True),
]
