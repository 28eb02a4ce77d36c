# A ViT that takes the weights of a teacher and has another attention: one epoch for each attention alone, then two for
# the whole model, which learns the teacher's logits. A config adds the models.
model = dict(type="LineariseClassifier", phase1_epochs=1)
custom_hooks = [dict(type="LineariseHook")]

train_cfg = dict(type="ExactEpochLoop", max_epochs=3, val_interval=1)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.02),
    clip_grad=dict(max_norm=1.0),
)
# The attentions learn at 1e-3 in the first phase; the whole model, which is close to its teacher by then, from 2e-4 on.
param_scheduler = [
    dict(type="MultiStepLR", milestones=[1], gamma=0.2, by_epoch=True, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=1, convert_to_iter_based=True),
]
# In the first phase most parameters have no gradient.
model_wrapper_cfg = dict(type="MMDistributedDataParallel", find_unused_parameters=True)
