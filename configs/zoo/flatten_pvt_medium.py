# tools/dist_train.sh configs/zoo/flatten_pvt_medium.py 8
# 37 M parameters; the authors publish no figure.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="flatten_pvt_medium", drop_path_rate=0.3)

# 8 processes of 64.
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=0.0005))
auto_scale_lr = dict(base_batch_size=512)
