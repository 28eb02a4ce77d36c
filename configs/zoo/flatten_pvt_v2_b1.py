# tools/dist_train.sh configs/zoo/flatten_pvt_v2_b1.py 8
# 13 M parameters; the authors publish no figure.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="flatten_pvt_v2_b1", drop_path_rate=0.1)

optim_wrapper = dict(clip_grad=None)
