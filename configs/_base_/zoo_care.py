# The recipe of CARE (github.com/zhouyuan888888/CARE-Transformer): 300 epochs of AdamW at batch 1536, and ten more at
# the last rate, without clipping. Labels train one head, decisions of RegNetY-16GF the other; timm downloads it.
# A config adds the name of its model. A drop path rate is published for the smallest alone.
_base_ = "zoo.py"

model = dict(
    type="DistillClassifier",
    drop_path_rate=0.1,
    teacher=dict(model_name="regnety_160.deit_in1k", pretrained=True),
    distillation="hard",
    alpha=0.5,
)
train_pipeline = [
    dict(type="TimmAugment", auto_augment="rand-m9-mstd0.5-inc1", color_jitter=0.4, interpolation="random"),
    dict(type="PackInputs"),
]
train_dataloader = dict(batch_size=192, dataset=dict(pipeline=train_pipeline))
train_cfg = dict(max_epochs=310)
optim_wrapper = dict(optimizer=dict(lr=2.5e-3), clip_grad=None)
# Twenty epochs of linear warm-up from 1e-6, then half a cosine to 1e-5.
param_scheduler = [
    dict(type="LinearLR", start_factor=4e-4, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=20, end=300, convert_to_iter_based=True),
]
auto_scale_lr = dict(base_batch_size=1536)
