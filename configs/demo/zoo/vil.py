# python tools/train.py configs/demo/zoo/vil.py
# A reduced vil2_tiny of 0.31 M parameters.
_base_ = "../soft_pico_shapes.py"

model = dict(model_name="vil2_tiny", embed_dim=64, depth=8, num_heads=4)
train_cfg = dict(max_epochs=8)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
