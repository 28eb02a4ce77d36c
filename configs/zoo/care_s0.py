# tools/dist_train.sh configs/zoo/care_s0.py 8
# 7 M parameters; published top-1 78.4 %.
_base_ = "../_base_/zoo_care.py"

model = dict(model_name="care_s0")
