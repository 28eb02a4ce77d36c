# python tools/train.py configs/demo/zoo/mlla.py
# A reduced mlla_tiny of 0.44 M parameters, with MESA: top-1 97.7 %, and 97.8 % of the averaged weights.
_base_ = "../soft_pico_shapes.py"

model = dict(
    type="MesaClassifier",
    model_name="mlla_tiny",
    embed_dims=(16, 32, 64, 128),
    depths=(1, 1, 1, 1),
    num_heads=(1, 2, 4, 4),
    mesa_ratio=1.0,
)
custom_hooks = [dict(type="EMAEvalHook", momentum=1e-2), dict(type="MesaHook", begin=0.25)]
