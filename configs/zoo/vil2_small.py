# tools/dist_train.sh configs/zoo/vil2_small.py 8
# 23 M parameters; published top-1 81.5 %, after 20 more epochs at 224 pixels at a rate of 1e-5 and a
# batch of 1024, without clipping.
_base_ = "../_base_/zoo_vil.py"

image_size = 192
model = dict(model_name="vil2_small", drop_path_rate=0.05)
