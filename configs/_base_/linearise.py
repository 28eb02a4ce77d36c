# A ViT that takes the weights of a teacher and has another attention: one epoch for each attention alone, then two for
# the whole model, which learns the teacher's logits. A config adds the models.
model = dict(type="LineariseClassifier", phase1_epochs=1)
custom_hooks = [dict(type="LineariseHook")]

train_cfg = dict(by_epoch=True, max_epochs=3, val_interval=1)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.02),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, convert_to_iter_based=True)]
# In the first phase most parameters have no gradient.
model_wrapper_cfg = dict(type="MMDistributedDataParallel", find_unused_parameters=True)
