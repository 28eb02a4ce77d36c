# tools/dist_train.sh configs/soft_base.py 8
# 39 M parameters; no accuracy is published; the recipe is that of small.
_base_ = ["_base_/default_runtime.py", "_base_/imagenet.py", "_base_/recipe.py"]

model = dict(model_name="soft_base")
