# python tools/train.py configs/fashion_mnist/none_pyramid_pico.py
# The pyramid of soft_plus_pico.py without attention: convolutions between its stages, and the mean at the end.
# 94.3 % with one seed, in 37 CPU minutes: attention brings nothing here.
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="none_pyramid_pico", attention=["none"] * 4, global_pool="avg")
