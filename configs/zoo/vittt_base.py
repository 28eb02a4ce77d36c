# tools/dist_train.sh configs/zoo/vittt_base.py 8
# 90 M parameters; published top-1 82.6 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vittt_base", drop_path_rate=0.4)
