# tools/dist_train.sh configs/baselines/gla_pyramid_tiny.py 8
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/recipe.py"]

model = dict(model_name="gla_pyramid_tiny")
