# tools/dist_train.sh configs/zoo/inline_pvt_large.py 8
# 51 M parameters; published top-1 83.6 %.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="inline_pvt_large", drop_path_rate=0.3)

# 8 processes of 64.
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=0.0005))
auto_scale_lr = dict(base_batch_size=512)
