# python tools/train.py configs/demo/zoo/weightformer.py
# A reduced wfm_tiny in patches of 8 pixels. Not a recipe: no setting is known with which it learns these images in
# minutes. Pilots of 300 steps, at rates of 1e-3 to 3e-3, by AdamW or Muon, and with weights scaled to their inputs,
# ended between 15 and 26 %.
_base_ = "../soft_pico_shapes.py"

model = dict(model_name="wfm_tiny", patch_size=8, embed_dim=128, depth=5)
train_cfg = dict(max_epochs=10)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
