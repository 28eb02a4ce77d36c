# The same, tested on the middle of images that are resized to squares, as the bodies of Swin and DeiT are.
# A config adds the name of its model.
_base_ = "zoo.py"

# Images get the size of the model.
test_pipeline = [
    dict(type="LoadedImage"),
    dict(type="TimmEvalCrop", crop_pct=0.875, crop_mode="squash", interpolation="bicubic"),
    dict(type="PackInputs"),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
