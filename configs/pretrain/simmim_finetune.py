# tools/dist_train.sh configs/pretrain/simmim_finetune.py 8 --cfg-options data_root=/path/to/imagenet \
#     model.model_name=soft_plus_tiny load_from=work_dirs/simmim/model.safetensors
# Fine-tuning after pre-training. Published, for Swin-B (SimMIM, arXiv 2111.09886, Sec. 4.1): 100 epochs of AdamW at
# batch 2048, learning rate 5e-3 after 20 epochs of warm-up, a cosine to 1e-6, layer decay 0.9 (0.8 after 800 epochs of
# pre-training), weight decay 0.05, drop path 0.1, clipping at 5, the augmentation of imagenet.py. Of this project: 224
# pixels instead of 192, and half of the published batch by the linear rule. Not run at this size here.
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/recipe.py"]

model = dict(model_name="soft_plus_tiny")

train_cfg = dict(max_epochs=100)
optim_wrapper = dict(
    paramwise_cfg=dict(layer_decay=0.9),
    optimizer=dict(lr=2.5e-3),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=2e-4, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=2e-4, by_epoch=True, begin=20, convert_to_iter_based=True),
]
custom_hooks = []
