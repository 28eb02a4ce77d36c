# python tools/train.py configs/demo/soft_pico_shapes.py
# A first training run: 1.1 M parameters, five passes over 10,000 generated images of 64 pixels.
# About 4 minutes on two free cores; top-1 97.7 % on 1,000 held-out images.
_base_ = ["../_base_/default_runtime.py", "../_base_/shapes.py"]

model = dict(
    type="TimmTrainClassifier", model_name="soft_pico", num_classes=_base_.num_classes, img_size=_base_.image_size
)

train_cfg = dict(type="ExactEpochLoop", max_epochs=5, val_interval=1)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.02),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.05, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=1, convert_to_iter_based=True),
]
