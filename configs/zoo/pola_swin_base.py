# tools/dist_train.sh configs/zoo/pola_swin_base.py 8
# 89 M parameters; published top-1 83.8 %.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="pola_swin_base", drop_path_rate=0.5)

# 8 processes of 64.
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=0.0005))
auto_scale_lr = dict(base_batch_size=512)
