# tools/dist_train.sh configs/zoo/vil2_tiny.py 8
# 6 M parameters; published top-1 78.3 %, after 20 more epochs at 224 pixels at a rate of 1e-5 and a
# batch of 1024, without clipping.
_base_ = "../_base_/zoo_vil.py"

image_size = 192
model = dict(model_name="vil2_tiny")
train_cfg = dict(max_epochs=800)
