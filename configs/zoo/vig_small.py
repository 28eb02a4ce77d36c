# tools/dist_train.sh configs/zoo/vig_small.py 8
# 23 M parameters; published top-1 81.7 %.
_base_ = "../_base_/zoo_vig.py"

model = dict(model_name="vig_small", drop_path_rate=0.2)
optim_wrapper = dict(optimizer=dict(weight_decay=0.1))
