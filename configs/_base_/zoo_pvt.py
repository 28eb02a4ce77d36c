# The same for the body of PVT: five epochs of warm-up instead of twenty, ten more at the last rate. Small models
# are not clipped.
# A config adds the name of its model.
_base_ = "zoo_square.py"

train_cfg = dict(max_epochs=310)
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type="LinearLR", start_factor=2e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.02, by_epoch=True, begin=5, end=300, convert_to_iter_based=True),
]
