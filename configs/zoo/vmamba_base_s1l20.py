# tools/dist_train.sh configs/zoo/vmamba_base_s1l20.py 8
# 87 M parameters; published top-1 83.8 %.
_base_ = "../_base_/zoo_vmamba.py"

model = dict(model_name="vmamba_base_s1l20", drop_path_rate=0.5)
