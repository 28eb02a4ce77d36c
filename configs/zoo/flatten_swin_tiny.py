# tools/dist_train.sh configs/zoo/flatten_swin_tiny.py 8
# 29 M parameters; published top-1 82.1 %.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="flatten_swin_tiny", drop_path_rate=0.2)
