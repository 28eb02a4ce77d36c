# python tools/train.py configs/demo/zoo/flatten_pvt.py
# PLACEHOLDER
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="flatten_pvt_tiny",
    embed_dims=(32, 64, 128, 160),
    depths=(1, 1, 2, 1),
    num_heads=(1, 2, 4, 5),
    mlp_ratios=(4, 4, 4, 4),
)
