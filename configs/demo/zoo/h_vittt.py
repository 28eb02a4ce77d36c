# python tools/train.py configs/demo/zoo/h_vittt.py
# A reduced h_vittt_tiny of 0.46 M parameters, with MESA: top-1 97.8 %, and 97.9 % of the averaged weights.
_base_ = "../soft_pico_shapes.py"

model = dict(
    type="MesaClassifier",
    model_name="h_vittt_tiny",
    embed_dims=(16, 32, 64, 128),
    depths=(1, 1, 1, 1),
    num_heads=(1, 2, 4, 4),
    mesa_ratio=1.0,
)
custom_hooks = [dict(type="EMAEvalHook", momentum=1e-2), dict(type="MesaHook", begin=0.25)]
