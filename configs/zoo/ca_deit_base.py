# tools/dist_train.sh configs/zoo/ca_deit_base.py 8
# 94 M parameters; published top-1 82.3 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="ca_deit_base", drop_path_rate=0.4)
