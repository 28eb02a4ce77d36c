# python tools/train.py configs/finetune/soft_tiny_imagefolder.py --cfg-options data_root=/path/to/images
# data_root holds train/ and val/ with a folder for each class, or one of the other layouts that imagenet.py names. The
# classes are counted there. load_from=work_dirs/soft_tiny/epoch_300.pth starts from other weights: a checkpoint of
# tools/train.py, a file of weights, its address, or timm://NAME. The log says what was fitted: a head for other classes
# is replaced, position embeddings are resampled.
# More options: model.model_name=NAME for any other model, of soft_vit or timm; model.frozen_stages=2 trains the last
# two stages alone; optim_wrapper.paramwise_cfg.layer_decay=1.0 trains all layers at one rate.
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/finetune.py"]

num_classes = None
model = dict(model_name="soft_tiny")
load_from = "timm://soft_tiny"

# Milder than from scratch; and small data sets have no image to lose.
data_preprocessor = dict(num_classes=num_classes, reprob=0.1, mixup=0.0, cutmix=0.0, smoothing=0.0)
train_dataloader = dict(batch_size=16, drop_last=False)
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator
