# tools/dist_train.sh configs/zoo/vmamba_small_s2l15.py 8
# 50 M parameters; published top-1 83.6 %.
_base_ = "../_base_/zoo_vmamba.py"

model = dict(model_name="vmamba_small_s2l15", drop_path_rate=0.3)
