# tools/dist_train.sh configs/zoo/vittt_tiny.py 8
# 6 M parameters; published top-1 76.5 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vittt_tiny", drop_path_rate=0.0)
