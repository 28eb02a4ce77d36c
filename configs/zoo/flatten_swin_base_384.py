# tools/dist_train.sh configs/zoo/flatten_swin_base_384.py 8 \
#     --cfg-options load_from=work_dirs/flatten_swin_base/epoch_300.pth
# 91 M parameters; published top-1 85 %.
_base_ = "../_base_/zoo_swin_384.py"

model = dict(model_name="flatten_swin_base_384", drop_path_rate=0.5)
