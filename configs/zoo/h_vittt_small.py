# tools/dist_train.sh configs/zoo/h_vittt_small.py 8
# 54 M parameters; published top-1 84.9 %.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="h_vittt_small", drop_path_rate=0.4, mesa_ratio=1.5)
