# tools/dist_train.sh configs/zoo/vrwkv6_base.py 8
# 105 M parameters; published top-1 82.6 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vrwkv6_base", drop_path_rate=0.5)
