# python tools/train.py configs/demo/zoo/vig_h.py
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="vig_h_tiny",
    embed_dims=(16, 32, 64, 128),
    depths=(1, 1, 1, 1),
    num_heads=(1, 2, 4, 4),
)
train_cfg = dict(max_epochs=10)
