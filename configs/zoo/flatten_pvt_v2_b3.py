# tools/dist_train.sh configs/zoo/flatten_pvt_v2_b3.py 8
# 38 M parameters; the authors publish no figure.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="flatten_pvt_v2_b3", drop_path_rate=0.3)
