# tools/dist_train.sh configs/zoo/pola_pvt_tiny.py 8
# 13 M parameters; published top-1 78.8 %.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="pola_pvt_tiny", drop_path_rate=0.1)

optim_wrapper = dict(clip_grad=None)
