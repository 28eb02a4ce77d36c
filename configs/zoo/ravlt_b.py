# tools/dist_train.sh configs/zoo/ravlt_b.py 8
# 48 M parameters; published top-1 85.5 %.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="ravlt_b", drop_path_rate=0.4)
