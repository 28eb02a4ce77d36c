# The generated shapes with boxes and masks:
#   python tools/make_shapes.py data/shapes_coco --task coco
dataset_type = "CocoDataset"
data_root = "data/shapes_coco/"
metainfo = dict(classes=("circle", "triangle", "square", "star", "ring", "cross", "bar", "crescent", "heart", "arrow"))

# A mirrored shape is a shape of the same class.
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "flip", "flip_direction")),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    # Whatever the size: predictions are returned to it by the factor that this one notes.
    dict(type="Resize", scale_factor=1.0),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=True),
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        ann_file="annotations/instances_train2017.json",
        data_prefix=dict(img="train2017/"),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        data_root=data_root,
        ann_file="annotations/instances_val2017.json",
        data_prefix=dict(img="val2017/"),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(
    type="CocoMetric", ann_file=data_root + "annotations/instances_val2017.json", metric=["bbox", "segm"]
)
test_evaluator = val_evaluator
