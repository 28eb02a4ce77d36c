# tools/dist_train.sh configs/zoo/vrwkv_base.py 8
# 94 M parameters; published top-1 82 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vrwkv_base", drop_path_rate=0.5)
