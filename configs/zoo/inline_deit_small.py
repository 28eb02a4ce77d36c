# tools/dist_train.sh configs/zoo/inline_deit_small.py 8
# 17 M parameters; published top-1 80.2 %.
_base_ = "../_base_/zoo_square.py"

image_size = 288
model = dict(model_name="inline_deit_small", drop_path_rate=0.1)
