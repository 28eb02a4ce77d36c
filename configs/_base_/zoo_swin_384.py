# Thirty epochs at 384 pixels from weights that were trained at 224; images are tested whole.
# A config adds the name of its model and load_from.
_base_ = "zoo_square.py"

image_size = 384
# Images get the size of the model.
test_pipeline = [
    dict(type="LoadedImage"),
    dict(type="TimmEvalCrop", crop_pct=1.0, crop_mode="squash", interpolation="bicubic"),
    dict(type="PackInputs"),
]
train_dataloader = dict(batch_size=32)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=30)
optim_wrapper = dict(optimizer=dict(lr=2e-5, weight_decay=1e-8))
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.01, by_epoch=True, begin=5, convert_to_iter_based=True),
]
auto_scale_lr = dict(base_batch_size=256)
