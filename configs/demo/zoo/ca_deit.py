# python tools/train.py configs/demo/zoo/ca_deit.py
# A reduced ca_deit_tiny of 0.56 M parameters.
_base_ = "../soft_pico_shapes.py"

model = dict(model_name="ca_deit_tiny", embed_dim=96, depth=4)
train_cfg = dict(max_epochs=8)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
