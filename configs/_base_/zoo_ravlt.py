# The recipe of RAVLT (arXiv 2411.07635) and MAViT (arXiv 2507.00698): 300 epochs of AdamW at batch 1024, with repeated
# augmentation. A config adds the name of its model and its drop path rate. Augmentation stands in imagenet.py.
_base_ = ["default_runtime.py", "imagenet.py", "recipe.py"]

# Each image three times in a batch over all processes.
train_dataloader = dict(sampler=dict(type="RepeatAugSampler", num_repeats=3))
# 5e-4 for every 512 images of a batch. Layer scales are no vectors, so they decay, as in the released code.
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=None)
# Five epochs of linear warm-up from 1e-6, then half a cosine to 1e-5.
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=5, convert_to_iter_based=True),
]
# One minus 0.99996^(batch / 512).
custom_hooks = [dict(type="EMAEvalHook", momentum=8e-5)]
