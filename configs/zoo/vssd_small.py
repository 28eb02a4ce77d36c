# tools/dist_train.sh configs/zoo/vssd_small.py 8
# 40 M parameters; published top-1 84.5 %, and 84.1 % without MESA.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="vssd_small", drop_path_rate=0.4, mesa_ratio=1.5)

# 3e-4 for every 512 images of a batch, from the same first rate as of the others.
optim_wrapper = dict(optimizer=dict(lr=6e-4))
param_scheduler = [
    dict(type="LinearLR", start_factor=1 / 600, by_epoch=True, begin=0, end=20, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.01, by_epoch=True, begin=20, convert_to_iter_based=True),
]
