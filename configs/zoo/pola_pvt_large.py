# tools/dist_train.sh configs/zoo/pola_pvt_large.py 8
# 54 M parameters; the authors publish no figure.
_base_ = "../_base_/zoo_pvt.py"

model = dict(model_name="pola_pvt_large", drop_path_rate=0.3)

# 8 processes of 32.
train_dataloader = dict(batch_size=32)
optim_wrapper = dict(optimizer=dict(lr=0.00025))
auto_scale_lr = dict(base_batch_size=256)
