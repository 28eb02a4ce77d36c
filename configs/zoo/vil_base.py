# tools/dist_train.sh configs/zoo/vil_base.py 8
# 88 M parameters; published top-1 81.6 %.
_base_ = "../_base_/zoo_vil.py"

model = dict(model_name="vil_base", drop_path_rate=0.2)
