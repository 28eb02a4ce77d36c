# python tools/train.py configs/fashion_mnist/soft_plus_pico.py
# Twenty-five passes, 94.29 % of the test images with seed 0, in 65 minutes of CPU time on a core of an AMD EPYC.
_base_ = ["../_base_/default_runtime.py", "../_base_/fashion_mnist.py"]

model = dict(model_name="soft_plus_pico")
