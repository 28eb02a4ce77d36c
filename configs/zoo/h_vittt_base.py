# tools/dist_train.sh configs/zoo/h_vittt_base.py 8
# 94 M parameters; published top-1 85.5 %.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="h_vittt_base", drop_path_rate=0.6, mesa_ratio=2.0)
