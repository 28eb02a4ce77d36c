# tools/dist_train.sh configs/zoo/wfm_base.py 8
# 27 M parameters; top-1 83.4 %, read off a figure of the released code.
_base_ = "../_base_/zoo_square.py"

image_size = 448
model = dict(model_name="wfm_base", drop_path_rate=0.2)

# 8 processes of 256.
train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=0.002))
auto_scale_lr = dict(base_batch_size=2048)
