# tools/dist_train.sh configs/segmentation/efficientvit_seg_b1_cityscapes.py 8 \
#     --cfg-options data_root=/path/to/cityscapes model.backbone.checkpoint_path=timm://efficientvit_b1.r224_in1k
# python tools/test.py configs/segmentation/efficientvit_seg_b1_cityscapes.py efficientvit_seg_b1_cityscapes.pt \
#     --cfg-options data_root=/path/to/cityscapes
# load_from=efficientvit_seg_b1_cityscapes.pt begins with the released backbone and head instead. The test is the
# published one, of whole images; published mIoU 80.547 (the authors' repository). Of the training, little is published:
# see _base_/efficientvit_seg.py. Not trained here. 4.8 M parameters.
_base_ = ["../_base_/segmentation.py", "../_base_/cityscapes.py", "../_base_/efficientvit_seg.py"]

model = dict(
    num_classes=19,
    backbone=dict(model_name="efficientvit_seg_b1_cityscapes"),
    decoder=dict(channels=64, depth=3, out_expand=4),
)

auto_scale_lr = dict(base_batch_size=8)

default_hooks = dict(checkpoint=dict(interval=16000))
