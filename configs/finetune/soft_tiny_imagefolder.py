# tools/dist_train.sh configs/finetune/soft_tiny_imagefolder.py 1 --cfg-options data_root=/path/to/images \
#     model.num_classes=37 load_from=work_dirs/soft_tiny/epoch_300.pth
# Any data_root with train/ and val/, in them a folder for each class; or the other layouts that imagenet.py names.
# load_from: a checkpoint of tools/train.py, a file of weights, its address, or the published weights of a timm model,
# timm://NAME. A head for other classes is replaced and position embeddings are resampled, as the log says.
# Further options: model.frozen_stages=2 trains the last two stages alone; optim_wrapper.paramwise_cfg.layer_decay=1.0
# trains all layers at one rate; model.model_name takes any other model, of soft_vit or timm.
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/finetune.py"]

model = dict(model_name="soft_tiny", img_size=224)
load_from = "timm://soft_tiny"

# Milder than from scratch; and small data sets have no image to lose.
data_preprocessor = dict(reprob=0.1, mixup=0.0, cutmix=0.0, smoothing=0.0)
train_dataloader = dict(batch_size=64, drop_last=False)
val_evaluator = dict(topk=(1,))
test_evaluator = val_evaluator
