# tools/dist_train.sh configs/zoo/mavit_l.py 8
# 98 M parameters; published top-1 86.0 %.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="mavit_l", drop_path_rate=0.55)
