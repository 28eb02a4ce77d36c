# tools/dist_train.sh configs/soft_tiny.py 8
# 13 M parameters; published top-1 79.3 %.
_base_ = ["_base_/default_runtime.py", "_base_/imagenet.py", "_base_/recipe.py"]

model = dict(model_name="soft_tiny")
