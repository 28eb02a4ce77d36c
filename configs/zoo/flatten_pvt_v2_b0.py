# tools/dist_train.sh configs/zoo/flatten_pvt_v2_b0.py 8
# 4 M parameters; published top-1 71.1 %.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="flatten_pvt_v2_b0", drop_path_rate=0.1)

optim_wrapper = dict(clip_grad=None)
