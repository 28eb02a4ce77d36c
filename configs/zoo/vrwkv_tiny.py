# tools/dist_train.sh configs/zoo/vrwkv_tiny.py 8
# 6 M parameters; published top-1 75.1 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vrwkv_tiny")
# The smallest are trained without mixing images.
data_preprocessor = dict(mixup=0.0, cutmix=0.0)
