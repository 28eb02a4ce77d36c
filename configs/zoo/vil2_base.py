# tools/dist_train.sh configs/zoo/vil2_base.py 8
# 89 M parameters; published top-1 82.4 %, after 5 more epochs at 224 pixels at a rate of 1e-5 and a
# batch of 1024, without clipping.
_base_ = "../_base_/zoo_vil.py"

image_size = 192
model = dict(model_name="vil2_base", drop_path_rate=0.2)
