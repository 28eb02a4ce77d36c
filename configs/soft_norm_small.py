# tools/dist_train.sh configs/soft_norm_small.py 8
# 24 M parameters; published top-1 82.4 %.
_base_ = ["_base_/default_runtime.py", "_base_/imagenet.py", "_base_/recipe.py"]

model = dict(model_name="soft_norm_small")
