# tools/dist_train.sh configs/zoo/vig_base.py 8
# 89 M parameters; published top-1 82.6 %.
_base_ = "../_base_/zoo_vig.py"

model = dict(model_name="vig_base", drop_path_rate=0.5)
optim_wrapper = dict(optimizer=dict(lr=0.002))
# From 1e-6 to 1e-5.
param_scheduler = [
    dict(type="LinearLR", start_factor=0.0005, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=20, convert_to_iter_based=True),
]
