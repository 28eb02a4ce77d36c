# Generated shapes as a COCO tree, 200 training and 100 test images of 256 pixels:
#   python tools/data/make_shapes.py data/shapes_coco --task coco
# --cfg-options data_root=PATH for another place.
_base_ = "coco.py"

data_root = "data/shapes_coco"

# Every shape is its own mirror image, and stands at any angle.
_turns = [
    dict(type="RandomHorizontalFlip", p=0.5),
    dict(type="RandomApply", transforms=[dict(type="RandomRotation", degrees=[90, 90])], p=0.5),
    dict(type="RandomVerticalFlip", p=0.5),
]

_loading = dict(batch_size=4, num_workers=0, persistent_workers=False, pin_memory=False)
train_dataloader = dict(**_loading, dataset=dict(transforms=_turns))
val_dataloader = _loading
test_dataloader = val_dataloader
