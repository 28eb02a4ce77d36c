# python tools/train.py configs/fashion_mnist/soft_plus_pico.py
# Seventeen passes, 93.96 % of the test images with seed 0, in 78 minutes of CPU time on a busy core of an AMD EPYC.
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="soft_plus_pico")
