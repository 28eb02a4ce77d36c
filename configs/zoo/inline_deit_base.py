# tools/dist_train.sh configs/zoo/inline_deit_base.py 8
# 24 M parameters; published top-1 82.3 %.
_base_ = "../_base_/zoo_square.py"

image_size = 448
model = dict(model_name="inline_deit_base", drop_path_rate=0.1)

# 8 processes of 64.
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=0.0005))
auto_scale_lr = dict(base_batch_size=512)
