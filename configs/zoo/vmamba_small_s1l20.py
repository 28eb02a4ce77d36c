# tools/dist_train.sh configs/zoo/vmamba_small_s1l20.py 8
# 49 M parameters; published top-1 83.3 %.
_base_ = "../_base_/zoo_vmamba.py"

model = dict(model_name="vmamba_small_s1l20", drop_path_rate=0.3)
