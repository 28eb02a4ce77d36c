# python tools/train.py configs/cifar/softmax_pyramid_pico_cifar100.py
# Downloads CIFAR-100 to data/cifar; --cfg-options image_size=64 enlarges the images. Not run on the real data here.
_base_ = ["../_base_/default_runtime.py", "../_base_/cifar.py"]

num_classes = 100
data_preprocessor = dict(num_classes=num_classes)
model = dict(model_name="softmax_pyramid_pico")
train_dataloader = dict(dataset=dict(name="torch/cifar100"))
val_dataloader = dict(dataset=dict(name="torch/cifar100"))
test_dataloader = val_dataloader
