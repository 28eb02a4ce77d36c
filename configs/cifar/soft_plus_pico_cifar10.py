# python tools/train.py configs/cifar/soft_plus_pico_cifar10.py
# Downloads CIFAR-10 to data/cifar; --cfg-options image_size=64 enlarges the images. Not run on the real data here.
_base_ = ["../_base_/default_runtime.py", "../_base_/cifar.py"]

model = dict(model_name="soft_plus_pico")
