# The generated shapes with a label map of background and ten shapes:
#   python tools/make_shapes.py data/shapes_ade --task ade
dataset_type = "BaseSegDataset"
data_root = "data/shapes_ade"
metainfo = dict(
    classes=(
        "background",
        "circle",
        "triangle",
        "square",
        "star",
        "ring",
        "cross",
        "bar",
        "crescent",
        "heart",
        "arrow",
    )
)

# A mirrored shape is a shape of the same class.
train_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="RandomFlip", prob=0.5),
    dict(type="PackSegInputs"),
]
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="PackSegInputs"),
]

train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type="InfiniteSampler", shuffle=True),
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        reduce_zero_label=True,
        data_root=data_root,
        data_prefix=dict(img_path="images/training", seg_map_path="annotations/training"),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type="DefaultSampler", shuffle=False),
    dataset=dict(
        type=dataset_type,
        metainfo=metainfo,
        reduce_zero_label=True,
        data_root=data_root,
        data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="IoUMetric", iou_metrics=["mIoU"])
test_evaluator = val_evaluator
