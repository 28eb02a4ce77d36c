# tools/dist_train.sh configs/zoo/inline_pvt_small.py 8
# 22 M parameters; published top-1 82 %.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="inline_pvt_small", drop_path_rate=0.1)

optim_wrapper = dict(clip_grad=None)
