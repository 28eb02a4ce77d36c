# python tools/train.py configs/demo/zoo/flatten_pvt_v2.py
# A reduced flatten_pvt_v2_b0 of 0.44 M parameters. Ten passes give a top-1 of 95.3 %.
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="flatten_pvt_v2_b0",
    embed_dims=(16, 32, 64, 128),
    depths=(1, 1, 2, 1),
    num_heads=(1, 1, 2, 4),
    mlp_ratios=(4, 4, 4, 4),
)
train_cfg = dict(max_epochs=10)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
