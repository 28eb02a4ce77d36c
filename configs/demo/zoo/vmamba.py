# python tools/train.py configs/demo/zoo/vmamba.py
# A reduced vmamba_tiny_s1l8 of 0.34 M parameters.
_base_ = "../soft_pico_shapes.py"

model = dict(model_name="vmamba_tiny_s1l8", embed_dims=(16, 32, 64, 128), depths=(1, 1, 1, 1))
train_cfg = dict(max_epochs=8)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
