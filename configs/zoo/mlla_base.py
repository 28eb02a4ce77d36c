# tools/dist_train.sh configs/zoo/mlla_base.py 8
# 96 M parameters; published top-1 85.3 %.
_base_ = "../_base_/zoo_mesa.py"

model = dict(model_name="mlla_base", drop_path_rate=0.5, mesa_ratio=2.0)

# 8 processes of 64.
train_dataloader = dict(batch_size=64)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
auto_scale_lr = dict(base_batch_size=512)
custom_hooks = [dict(type="EMAEvalHook", momentum=5e-5), dict(type="MesaHook", begin=0.25)]
