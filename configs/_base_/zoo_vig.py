# The recipe of ViG (github.com/hustvl/ViG): 300 epochs of AdamW at batch 1024, with an average of the weights. Pyramids
# were trained in fp16 (--amp).
# A config adds the name of its model, its drop path rate, and a learning rate other than 1e-3.
_base_ = "zoo.py"

# Twenty epochs of linear warm-up from 1e-6, then half a cosine to 1e-5.
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=20, convert_to_iter_based=True),
]
# One minus 0.9999.
custom_hooks = [dict(type="EMAEvalHook", momentum=1e-4)]
