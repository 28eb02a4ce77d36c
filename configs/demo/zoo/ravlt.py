# python tools/train.py configs/demo/zoo/ravlt.py
# PLACEHOLDER
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="ravlt_t",
    embed_dims=(32, 64, 96, 128),
    depths=(1, 1, 1, 1),
    num_heads=(1, 2, 3, 4),
    proj_width=256,
)
