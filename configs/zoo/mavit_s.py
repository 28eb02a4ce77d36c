# tools/dist_train.sh configs/zoo/mavit_s.py 8
# 27 M parameters; published top-1 84.7 %.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="mavit_s", drop_path_rate=0.15)
