# tools/dist_train.sh configs/zoo/flatten_pvt_v2_b2.py 8
# 23 M parameters; the authors publish no figure.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="flatten_pvt_v2_b2", drop_path_rate=0.1)

optim_wrapper = dict(clip_grad=None)
