# tools/dist_train.sh configs/zoo/vil_smallplus.py 8
# 25 M parameters; published top-1 80.9 %.
_base_ = "../_base_/zoo_vil.py"

model = dict(model_name="vil_smallplus", drop_path_rate=0.05)
