# tools/dist_train.sh configs/soft_plus_base.py 8
# 38 M parameters; not trained yet; the recipe is that of soft_base.
_base_ = ["_base_/default_runtime.py", "_base_/imagenet.py", "_base_/recipe.py"]

model = dict(model_name="soft_plus_base")
