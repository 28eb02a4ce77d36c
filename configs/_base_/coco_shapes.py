# Generated shapes as a COCO tree, 200 training and 100 test images of 256 pixels:
#   python tools/make_shapes.py data/shapes_coco --task coco
# --cfg-options data_root=PATH for another place.
data_root = "data/shapes_coco"

# Every shape is its own mirror image, and stands at any angle.
_turns = [
    dict(type="RandomHorizontalFlip", p=0.5),
    dict(type="RandomApply", transforms=[dict(type="RandomRotation", degrees=[90, 90])], p=0.5),
    dict(type="RandomVerticalFlip", p=0.5),
]

train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    drop_last=True,
    dataset=dict(
        type="CocoImages",
        data_root=None,
        ann_file="annotations/instances_train2017.json",
        img_dir="train2017",
        transforms=_turns,
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="pseudo_collate"),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=0,
    dataset=dict(
        type="CocoImages",
        data_root=None,
        ann_file="annotations/instances_val2017.json",
        img_dir="val2017",
        test_mode=True,
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="pseudo_collate"),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="CocoAP", kinds=["bbox"])
test_evaluator = val_evaluator
val_cfg = dict()
test_cfg = dict()
