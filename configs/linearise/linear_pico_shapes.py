# python tools/train.py configs/linearise/linear_pico_shapes.py
# The pyramid of softmax_pico_shapes.py, which is trained first, with linear attention. Another kind: model.model_name.
_base_ = ["../_base_/default_runtime.py", "../_base_/shapes.py", "../_base_/linearise.py"]

_checkpoint = "work_dirs/softmax_pico_shapes/epoch_3.pth"
model = dict(
    model_name="linear_pyramid_pico",
    teacher=dict(model_name="softmax_pyramid_pico", checkpoint=_checkpoint, img_size=64),
)
train_dataloader = dict(dataset=dict(length=2400))
