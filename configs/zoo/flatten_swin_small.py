# tools/dist_train.sh configs/zoo/flatten_swin_small.py 8
# 51 M parameters; published top-1 83.5 %.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="flatten_swin_small", drop_path_rate=0.3)
