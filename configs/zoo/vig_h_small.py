# tools/dist_train.sh configs/zoo/vig_h_small.py 8
# 50 M parameters; published top-1 83.8 %.
_base_ = "../_base_/zoo_vig.py"

model = dict(model_name="vig_h_small", drop_path_rate=0.3)
