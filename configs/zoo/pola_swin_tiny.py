# tools/dist_train.sh configs/zoo/pola_swin_tiny.py 8
# 29 M parameters; published top-1 82.6 %.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="pola_swin_tiny", drop_path_rate=0.2)
