# python tools/train.py configs/fashion_mnist/soft_plus_pico.py
# Thirteen passes, with about 100 minutes of CPU time on a busy core. Not run to the end here.
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="soft_plus_pico")
