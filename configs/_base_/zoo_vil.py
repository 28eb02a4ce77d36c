# The recipe of ViL (github.com/NX-AI/vision-lstm): 400 or 800 epochs of AdamW, with three augmentations (DeiT III), and
# without smoothing or erasing. Trained in bf16 (--amp).
# A config adds the name of its model, its drop path rate, and the number of epochs if it is not 400.
_base_ = "zoo.py"

data_preprocessor = dict(reprob=0.0, smoothing=0.0)
train_pipeline = [
    # Grey, solarise or blur, and colour jitter.
    dict(type="TimmAugment", auto_augment="3a", color_jitter=0.3, interpolation="bicubic"),
    dict(type="PackInputs"),
]
# Images get the size of the model.
test_pipeline = [
    dict(type="LoadedImage"),
    dict(type="TimmEvalCrop", crop_pct=1.0, interpolation="bicubic"),
    dict(type="PackInputs"),
]
train_dataloader = dict(batch_size=256, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=400)
# 1e-3 for every 1024 images of a batch.
optim_wrapper = dict(optimizer=dict(lr=2e-3), clip_grad=dict(max_norm=1.0))
# Five epochs of linear warm-up, then half a cosine to 1e-6.
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-6, by_epoch=True, begin=5, convert_to_iter_based=True),
]
auto_scale_lr = dict(base_batch_size=2048)
