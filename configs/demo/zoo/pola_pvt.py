# python tools/train.py configs/demo/zoo/pola_pvt.py
# PLACEHOLDER
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="pola_pvt_tiny",
    embed_dims=(32, 64, 96, 128),
    depths=(1, 1, 1, 1),
    num_heads=(1, 2, 3, 4),
    mlp_ratios=(4, 4, 4, 4),
)
# Without a convolution before it, more passes at a larger rate.
train_cfg = dict(max_epochs=8)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
