# python tools/train.py configs/fashion_mnist/softmax_pyramid_pico.py
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="softmax_pyramid_pico")
