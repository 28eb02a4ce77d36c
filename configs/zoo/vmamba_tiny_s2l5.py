# tools/dist_train.sh configs/zoo/vmamba_tiny_s2l5.py 8
# 31 M parameters; published top-1 82.5 %.
_base_ = "../_base_/zoo_vmamba.py"

model = dict(model_name="vmamba_tiny_s2l5", drop_path_rate=0.2)
