_base_ = ["../_base_/default_runtime.py", "../_base_/shapes.py"]

model = dict(type="TimmProgressClassifier", model_name="soft_pico", num_classes=10)

train_cfg = dict(by_epoch=True, max_epochs=10, val_interval=1)
optim_wrapper = dict(
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=1, end=10, convert_to_iter_based=True),
]
