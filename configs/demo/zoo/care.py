# python tools/train.py configs/demo/zoo/care.py
# A reduced care_s0 of 0.39 M parameters.
_base_ = "../soft_pico_shapes.py"

model = dict(
    model_name="care_s0",
    embed_dims=(16, 32, 64, 96),
    depths=(1, 1, 2, 2),
    num_heads=(0, 0, 1, 2),
)
train_cfg = dict(max_epochs=10)
optim_wrapper = dict(optimizer=dict(lr=3e-3))
