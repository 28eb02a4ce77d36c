# tools/dist_train.sh configs/zoo/inline_swin_base_384.py 8 \
#     --cfg-options load_from=work_dirs/inline_swin_base/epoch_300.pth
# 88 M parameters; the authors publish no figure.
_base_ = "../_base_/zoo_swin_384.py"

model = dict(model_name="inline_swin_base_384", drop_path_rate=0.5)
