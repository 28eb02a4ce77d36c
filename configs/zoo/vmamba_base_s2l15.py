# tools/dist_train.sh configs/zoo/vmamba_base_s2l15.py 8
# 89 M parameters; published top-1 83.9 %.
_base_ = "../_base_/zoo_vmamba.py"

model = dict(model_name="vmamba_base_s2l15", drop_path_rate=0.6)
