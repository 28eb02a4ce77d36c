# python tools/train.py configs/fashion_mnist/softmax_pyramid_pico.py
# The pyramid of soft_plus_pico.py with softmax attention. Not run to the end here.
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="softmax_pyramid_pico")
