# tools/dist_train.sh configs/zoo/vil_tinyplus.py 8
# 7 M parameters; published top-1 78.1 %.
_base_ = "../_base_/zoo_vil.py"

model = dict(model_name="vil_tinyplus")
train_cfg = dict(max_epochs=800)
