# tools/dist_train.sh configs/zoo/vil_tiny.py 8
# 6 M parameters; published top-1 77.3 %.
_base_ = "../_base_/zoo_vil.py"

model = dict(model_name="vil_tiny")
train_cfg = dict(max_epochs=800)
