# tools/dist_train.sh configs/zoo/vssd_micro.py 8
# 14 M parameters; published top-1 82.5 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vssd_micro", drop_path_rate=0.1)
custom_hooks = [dict(type="EMAEvalHook", momentum=1e-4)]
