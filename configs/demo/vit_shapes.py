# python tools/train.py configs/demo/vit_shapes.py
# A ViT with softmax attention, 0.22 M parameters, a class token and a map of 8 x 8; the teacher of docs/linearise.md.
# Four short passes leave it far from the accuracy of the pyramids.
_base_ = "soft_pico_shapes.py"

model = dict(
    model_name="vit_tiny_patch16_224",
    patch_size=8,
    embed_dim=64,
    depth=4,
    num_heads=2,
    global_pool="avg",
    fc_norm=False,
    weight_init="jax",
)
train_dataloader = dict(dataset=dict(length=4000))
train_cfg = dict(max_epochs=4)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
