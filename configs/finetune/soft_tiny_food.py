# python tools/train.py configs/finetune/soft_tiny_food.py
# Food 101 by torchvision's name; the first run downloads it to data/food. Not run on the real data here.
_base_ = ["./soft_tiny_imagefolder.py"]

data_root = "data/food"
num_classes = 101
data_preprocessor = dict(num_classes=num_classes)
dataset = dict(type="TimmDataset", name="torch/food101", data_root=data_root, download=True, _delete_=True)
train_dataloader = dict(dataset=dict(**dataset, split="train", pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(**dataset, split="test", test_mode=True, pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader
