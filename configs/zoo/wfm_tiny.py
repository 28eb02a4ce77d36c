# tools/dist_train.sh configs/zoo/wfm_tiny.py 8
# 7.1 M parameters; top-1 76.3 %, read off a figure of the released code.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="wfm_tiny", drop_path_rate=0.0)

# 8 processes of 256.
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=0.002))
auto_scale_lr = dict(base_batch_size=2048)
