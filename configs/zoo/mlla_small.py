# tools/dist_train.sh configs/zoo/mlla_small.py 8
# 43 M parameters; published top-1 84.4 %.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="mlla_small", drop_path_rate=0.3, mesa_ratio=1.5)

# 8 processes of 64.
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
auto_scale_lr = dict(base_batch_size=512)
custom_hooks = [dict(type="EMAEvalHook", momentum=5e-5), dict(type="MesaHook", begin=0.25)]
