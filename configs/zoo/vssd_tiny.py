# tools/dist_train.sh configs/zoo/vssd_tiny.py 8
# 24 M parameters; published top-1 84.1 %, and 83.6 % without MESA.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="vssd_tiny", drop_path_rate=0.2, mesa_ratio=1.0)
