# tools/dist_train.sh configs/zoo/vittt_small.py 8
# 24 M parameters; published top-1 81.6 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vittt_small", drop_path_rate=0.1)
