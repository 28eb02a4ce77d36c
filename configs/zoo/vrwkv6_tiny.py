# tools/dist_train.sh configs/zoo/vrwkv6_tiny.py 8
# 8 M parameters; published top-1 76.6 %.
_base_ = "../_base_/zoo.py"

model = dict(model_name="vrwkv6_tiny")
# The smallest are trained without mixing images.
data_preprocessor = dict(mixup=0.0, cutmix=0.0)
