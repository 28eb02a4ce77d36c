# tools/dist_train.sh configs/zoo/mlla_tiny.py 8
# 24 M parameters; published top-1 83.5 %.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="mlla_tiny", drop_path_rate=0.2, mesa_ratio=1.0)
