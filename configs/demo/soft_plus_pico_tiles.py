# python tools/train.py configs/demo/soft_plus_pico_tiles.py
# A first training run: 1.1 M parameters, four passes over 10,000 generated images of 64 pixels, whose question no part
# of an image answers by itself. Ends with the accuracy on 1,000 held-out images, that without attentions (99.9 and
# 19.2 % where guessing gives 17), and pictures of where they look; 4.5 minutes of CPU time on one thread of an Intel
# Xeon. It learns little until it finds the cue, and had 99.7 % after the third pass. A run of three passes gave 93.1 to
# 99.9 % on different machines. Other seeds find it later: with randomness.seed=1 the third pass ended with 38.0 %.
_base_ = ["./soft_pico_shapes.py"]

num_classes = 6
data_preprocessor = dict(num_classes=num_classes)
model = dict(model_name="soft_plus_pico", num_classes=num_classes)

# Left and right have a meaning, so nothing is flipped.
train_pipeline = [dict(type="LoadedImage"), dict(type="PackInputs")]
train_dataloader = dict(dataset=dict(scene="tiles", pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(scene="tiles"))
test_dataloader = val_dataloader

train_cfg = dict(max_epochs=4)
custom_hooks = [dict(type="AttentionReportHook")]
