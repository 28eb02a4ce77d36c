# tools/dist_train.sh configs/zoo/vmamba_tiny_s1l8.py 8
# 30 M parameters; published top-1 82.6 %.
_base_ = "../_base_/zoo_vmamba.py"

model = dict(model_name="vmamba_tiny_s1l8", drop_path_rate=0.2)
