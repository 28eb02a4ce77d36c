# tools/dist_train.sh configs/segmentation/efficientvit_seg_b1_ade20k.py 8 \
#     --cfg-options data_root=/path/to/ADEChallengeData2016 \
#     model.backbone.checkpoint_path=timm://efficientvit_b1.r224_in1k
# python tools/test.py configs/segmentation/efficientvit_seg_b1_ade20k.py efficientvit_seg_b1_ade20k.pt \
#     --cfg-options data_root=/path/to/ADEChallengeData2016
# load_from=efficientvit_seg_b1_ade20k.pt begins with the released backbone and head instead. The test is the published
# one: whole images, a shorter side of 512, a longer one rounded up to 32; published mIoU 42.840 (the authors'
# repository). Of the training, little is published: see _base_/efficientvit_seg.py. Not trained here. 4.8 M parameters.
_base_ = ["../_base_/segmentation.py", "../_base_/ade20k.py", "../_base_/efficientvit_seg.py"]

model = dict(
    num_classes=150,
    backbone=dict(model_name="efficientvit_seg_b1_ade20k"),
    decoder=dict(channels=64, depth=3),
)

test_pipeline = [
    dict(type="SegResize", scale=(512, 512), max_ratio=100, divisor=32, interpolation="bicubic"),
    dict(type="PackSegmentation"),
]
train_dataloader = dict(dataset=dict(labels="ade20k"))
val_dataloader = dict(dataset=dict(labels="ade20k", pipeline=test_pipeline))
test_dataloader = val_dataloader
auto_scale_lr = dict(base_batch_size=16)

default_hooks = dict(checkpoint=dict(interval=16000))
