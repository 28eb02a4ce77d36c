# tools/dist_train.sh configs/zoo/care_s2.py 8
# 19 M parameters; published top-1 82.1 %.
_base_ = "../_base_/zoo_care.py"

model = dict(model_name="care_s2")
