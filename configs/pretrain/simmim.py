# tools/dist_train.sh configs/pretrain/simmim.py 8 --cfg-options data_root=/path/to/images
# Masked image modelling in SimMIM's form (Xie et al., arXiv 2111.09886, Sec. 4.1), for model.model_name=NAME of
# soft_vit or timm, on a folder, a TAR or a ZIP of images; labels are not read. Not run at this size here. At the end,
# the work directory holds a report, and the weights as model.safetensors, which load_from in configs loads, and
# timm.create_model("local-dir:work_dirs/simmim", pretrained=True).
# Published, for Swin-B: 100 epochs at 192 pixels of AdamW at batch 2048, learning rate 8e-4 after 10 epochs of warm-up,
# a cosine to 4e-5, weight decay 0.05, clipping at 5. Crops of 67 to 100 % of the area, and flips. Masks of 60 % in
# squares of 32 pixels. Of this project: masked squares of the image are replaced, not embedded patches, as
# MaskedImageModel says.
_base_ = "../_base_/default_runtime.py"

data_root = None
image_size = 192

model = dict(type="MaskedImageModel", model_name="soft_plus_tiny", mask_ratio=0.6, mask_patch=32)
data_preprocessor = dict(type="RecipeDataPreprocessor")
train_pipeline = [
    dict(type="TimmAugment", scale=(0.67, 1.0), color_jitter=None, interpolation="bicubic"),
    dict(type="PackInputs"),
]
train_dataloader = dict(
    batch_size=256,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    collate_fn=dict(type="default_collate"),
    # The report shows the images that are held out.
    dataset=dict(type="UnlabelledDataset", held_out=64, pipeline=train_pipeline),
    sampler=dict(type="DefaultSampler", shuffle=True),
)

train_cfg = dict(type="ExactEpochLoop", max_epochs=100)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    constructor="TimmOptimWrapperConstructor",
    optimizer=dict(type="AdamW", lr=8e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=5e-3, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", eta_min_ratio=0.05, by_epoch=True, begin=10, convert_to_iter_based=True),
]
# Names images that cannot be read, and goes on with the others.
default_hooks = dict(bad_images=dict(type="BadImagesHook", max_share=0.5))
custom_hooks = [dict(type="PretrainingReportHook")]
# Parts that only serve a class token or a head have no gradient.
find_unused_parameters = True

# 8 processes of 256. `--auto-scale-lr` scales the rate for another batch by the linear rule, as SimMIM does.
auto_scale_lr = dict(base_batch_size=2048, enable=False)
