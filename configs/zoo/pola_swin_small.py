# tools/dist_train.sh configs/zoo/pola_swin_small.py 8
# 51 M parameters; published top-1 83.6 %.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="pola_swin_small", drop_path_rate=0.3)
