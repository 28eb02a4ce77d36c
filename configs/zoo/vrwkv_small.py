# tools/dist_train.sh configs/zoo/vrwkv_small.py 8
# 24 M parameters; published top-1 80.1 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vrwkv_small", drop_path_rate=0.3)
