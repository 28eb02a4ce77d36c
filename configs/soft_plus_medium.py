# tools/dist_train.sh configs/soft_plus_medium.py 8
# 45 M parameters; not trained yet; the recipe is that of soft_medium.
_base_ = ["_base_/default_runtime.py", "_base_/imagenet.py", "_base_/recipe.py"]

model = dict(model_name="soft_plus_medium")

# 8 processes of 32.
train_dataloader = dict(batch_size=32)
optim_wrapper = dict(optimizer=dict(lr=3.5e-4))
auto_scale_lr = dict(base_batch_size=256)
