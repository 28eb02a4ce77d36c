# Generated shapes in ADE20K's layout, 200 training and 100 test images of 256 pixels, 11 classes with the background:
#   python tools/data/make_shapes.py data/shapes_ade --task ade
# --cfg-options data_root=PATH for another place.
data_root = "data/shapes_ade"
num_classes = 11
# The demo's weights know shapes of about 40 pixels in images of 64.
window_size = 64
image_size = (160, 160)

# A shape keeps its class when it is turned, mirrored or painted in another colour.
data_preprocessor = dict(
    type="SegmentationPreprocessor",
    mean=[127.5, 127.5, 127.5],
    std=[64.0, 64.0, 64.0],
    windows=dict(size=window_size, per_image=4, scales=(0.4, 0.8), angle=180, stretch=1.28),
)
train_pipeline = [
    dict(
        type="SegImageTransforms",
        transforms=[
            dict(type="RandomChannelPermutation"),
            dict(type="RandomInvert", p=0.3),
            dict(type="ColorJitter", brightness=0.3, contrast=0.3),
        ],
    ),
    dict(type="PackSegmentation"),
]
test_pipeline = [dict(type="SegResize", scale=image_size), dict(type="PackSegmentation")]

train_dataloader = dict(
    batch_size=6,
    num_workers=0,
    dataset=dict(
        type="LabelMapTree", data_root=None, split="training", reduce_zero_label=True, pipeline=train_pipeline
    ),
    sampler=dict(type="InfiniteSampler", shuffle=True),
    collate_fn=dict(type="pseudo_collate"),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    dataset=dict(
        type="LabelMapTree",
        data_root=None,
        split="validation",
        reduce_zero_label=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    collate_fn=dict(type="pseudo_collate"),
)
test_dataloader = val_dataloader

val_evaluator = dict(type="SegmentationMetric")
test_evaluator = val_evaluator
val_cfg = dict()
test_cfg = dict()
