# tools/dist_train.sh configs/soft_plus_small.py 8
# 23 M parameters; not trained yet; the recipe is that of soft_small.
_base_ = ["_base_/default_runtime.py", "_base_/imagenet.py", "_base_/recipe.py"]

model = dict(model_name="soft_plus_small")
