# tools/dist_train.sh configs/zoo/ravlt_l.py 8
# 95 M parameters; published top-1 85.8 %.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="ravlt_l", drop_path_rate=0.55)
