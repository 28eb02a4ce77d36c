# python tools/train.py configs/fashion_mnist/softmax_pyramid_pico.py
# The pyramid of soft_plus_pico.py with softmax attention, 94.0 % with one seed, in 56 CPU minutes.
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="softmax_pyramid_pico")
