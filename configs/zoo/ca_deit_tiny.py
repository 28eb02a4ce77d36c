# tools/dist_train.sh configs/zoo/ca_deit_tiny.py 8
# 6 M parameters; published top-1 75.0 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="ca_deit_tiny", drop_path_rate=0.0)
