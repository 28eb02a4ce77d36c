# tools/dist_train.sh configs/zoo/inline_pvt_medium.py 8
# 38 M parameters; published top-1 83.2 %.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="inline_pvt_medium", drop_path_rate=0.3)
