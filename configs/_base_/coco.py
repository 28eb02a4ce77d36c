# COCO 2017 as downloaded, or any data in its layout:
#   data_root/annotations/instances_train2017.json    data_root/train2017/*.jpg
#   data_root/annotations/instances_val2017.json      data_root/val2017/*.jpg
# --cfg-options data_root=PATH; without it, data/coco. A folder of images may be a TAR or ZIP of that name instead.
data_root = "data/coco"

train_dataloader = dict(
    batch_size=2,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    dataset=dict(
        type="CocoImages",
        data_root=None,
        ann_file="annotations/instances_train2017.json",
        img_dir="train2017",
        transforms=[dict(type="RandomHorizontalFlip", p=0.5)],
    ),
    sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="pseudo_collate"),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
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
