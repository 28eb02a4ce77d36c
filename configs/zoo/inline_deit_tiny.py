# tools/dist_train.sh configs/zoo/inline_deit_tiny.py 8
# 6 M parameters; published top-1 74.5 %.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="inline_deit_tiny", drop_path_rate=0.1)

# 8 processes of 512.
train_dataloader = dict(batch_size=512)
optim_wrapper = dict(optimizer=dict(lr=0.004))
auto_scale_lr = dict(base_batch_size=4096)
