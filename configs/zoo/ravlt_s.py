# tools/dist_train.sh configs/zoo/ravlt_s.py 8
# 26 M parameters; published top-1 84.4 %.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="ravlt_s", drop_path_rate=0.15)
