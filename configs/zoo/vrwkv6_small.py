# tools/dist_train.sh configs/zoo/vrwkv6_small.py 8
# 28 M parameters; published top-1 81.1 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vrwkv6_small", drop_path_rate=0.3)
