# python tools/train.py configs/finetune/soft_tiny_flowers.py
# Flowers 102 by torchvision's name; the first run downloads it to data/flowers. Not run on the real data here.
_base_ = ["./soft_tiny_imagefolder.py"]

data_root = "data/flowers"
num_classes = 102
data_preprocessor = dict(num_classes=num_classes)
dataset = dict(type="TimmDataset", name="torch/flowers102", data_root=data_root, download=True, _delete_=True)
train_dataloader = dict(dataset=dict(**dataset, split="train", pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(**dataset, split="test", test_mode=True, pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader
