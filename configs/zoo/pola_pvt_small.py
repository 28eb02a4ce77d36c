# tools/dist_train.sh configs/zoo/pola_pvt_small.py 8
# 23 M parameters; published top-1 81.9 %.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="pola_pvt_small", drop_path_rate=0.1)

# 8 processes of 64.
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=0.0005), clip_grad=None)
auto_scale_lr = dict(base_batch_size=512)
