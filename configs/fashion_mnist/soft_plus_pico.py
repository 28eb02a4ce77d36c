# python tools/train.py configs/fashion_mnist/soft_plus_pico.py
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="soft_plus_pico")
