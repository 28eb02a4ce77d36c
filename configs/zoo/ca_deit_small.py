# tools/dist_train.sh configs/zoo/ca_deit_small.py 8
# 24 M parameters; published top-1 81.0 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="ca_deit_small", drop_path_rate=0.1)
