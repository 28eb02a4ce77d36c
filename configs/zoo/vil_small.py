# tools/dist_train.sh configs/zoo/vil_small.py 8
# 23 M parameters; published top-1 80.7 %.
_base_ = "../_base_/zoo_vil.py"

model = dict(model_name="vil_small", drop_path_rate=0.05)
