# tools/dist_train.sh configs/distill/soft_tiny_regnety_160.py 8 --cfg-options data_root=/path/to/imagenet
# The recipe of soft_tiny with labels and a teacher: hard distillation as in DeiT, arXiv 2012.12877, Sec. 4, from
# its own teacher, RegNetY-16GF with 82.9 % top-1 (its Table 2), which timm downloads once.
# Another teacher: model.teacher.model_name, any model of timm for the same classes, or model.teacher.checkpoint with
# model.teacher.pretrained=False for weights from a file. Soft distillation: model.distillation=soft model.alpha=0.1
# model.tau=3.0.
_base_ = ["../_base_/default_runtime.py", "../_base_/imagenet.py", "../_base_/recipe.py"]

model = dict(
    type="DistillClassifier",
    model_name="soft_tiny",
    teacher=dict(model_name="regnety_160.deit_in1k", pretrained=True),
    distillation="hard",
    alpha=0.5,
)
