# tools/dist_train.sh configs/zoo/care_s1.py 8
# 10 M parameters; published top-1 80.1 %.
_base_ = "../_base_/zoo_care.py"

model = dict(model_name="care_s1")
