# tools/dist_train.sh configs/zoo/vig_h_tiny.py 8
# 29 M parameters; published top-1 82.8 %.
_base_ = "../_base_/zoo_vig.py"

model = dict(model_name="vig_h_tiny", drop_path_rate=0.2)
optim_wrapper = dict(optimizer=dict(lr=0.0016))
# From 1e-6 to 1e-5.
param_scheduler = [
    dict(type="LinearLR", start_factor=0.000625, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min=1e-5, by_epoch=True, begin=20, convert_to_iter_based=True),
]
