# tools/dist_train.sh configs/zoo/ravlt_t.py 8
# 15 M parameters; published top-1 82.8 %.
_base_ = "../_base_/zoo_ravlt.py"

model = dict(model_name="ravlt_t", drop_path_rate=0.1)
