# python tools/train.py configs/demo/zoo/pola_pvt.py
# A reduced pola_pvt_tiny of 0.52 M parameters. Eight passes give a top-1 of 98.4 %.
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="pola_pvt_tiny",
    embed_dims=(32, 64, 96, 128),
    depths=(1, 1, 1, 1),
    num_heads=(1, 2, 3, 4),
    mlp_ratios=(4, 4, 4, 4),
)
train_cfg = dict(max_epochs=8)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
