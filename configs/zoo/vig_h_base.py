# tools/dist_train.sh configs/zoo/vig_h_base.py 8
# 89 M parameters; published top-1 84.2 %.
_base_ = "../_base_/zoo_vig.py"

model = dict(model_name="vig_h_base", drop_path_rate=0.6)
