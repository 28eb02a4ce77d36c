# tools/dist_train.sh configs/zoo/wfm_small.py 8
# 27 M parameters; top-1 81.3 %, read off a figure of the released code.
_base_ = "../_base_/zoo_square.py"

model = dict(model_name="wfm_small", drop_path_rate=0.2)

# 8 processes of 256.
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=0.002))
auto_scale_lr = dict(base_batch_size=2048)
