# tools/dist_train.sh configs/zoo/mavit_t.py 8
# 16 M parameters; top-1 82.9 % by a summary of the paper.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="mavit_t", drop_path_rate=0.1)
