# tools/dist_train.sh configs/zoo/mavit_b.py 8
# 50 M parameters; published top-1 85.7 %.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="mavit_b", drop_path_rate=0.4)
