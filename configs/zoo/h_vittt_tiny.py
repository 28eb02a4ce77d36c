# tools/dist_train.sh configs/zoo/h_vittt_tiny.py 8
# 29 M parameters; published top-1 84.0 %.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="h_vittt_tiny", drop_path_rate=0.2, mesa_ratio=1.0)
