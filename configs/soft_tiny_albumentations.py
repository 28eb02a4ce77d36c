# tools/dist_train.sh configs/soft_tiny_albumentations.py 8
# soft_tiny.py with the augmentation of each image by Albumentations; erasing and mixing of batches stay.
_base_ = ["_base_/default_runtime.py", "_base_/imagenet.py", "_base_/recipe.py"]

model = dict(model_name="soft_tiny")

train_pipeline = [
    dict(
        type="AlbumentationsTransform",
        transforms=[
            # 2: bicubic.
            dict(type="RandomResizedCrop", scale=(0.08, 1.0), interpolation=2),
            dict(type="HorizontalFlip", p=0.5),
            dict(
                type="SomeOf",
                n=2,
                p=1.0,
                transforms=[
                    dict(type="Affine", rotate=(-27, 27), interpolation=2, p=0.5),
                    dict(type="Affine", shear=(-15, 15), interpolation=2, p=0.5),
                    dict(type="Affine", translate_percent=(-0.4, 0.4), p=0.5),
                    dict(type="ColorJitter", brightness=0.4, contrast=0.4, saturation=0.4, hue=0.0, p=0.5),
                    dict(type="AutoContrast", p=0.5),
                    dict(type="Equalize", p=0.5),
                    dict(type="Posterize", num_bits=(4, 8), p=0.5),
                    dict(type="Solarize", threshold_range=(0.1, 1.0), p=0.5),
                    dict(type="Sharpen", p=0.5),
                    dict(type="InvertImg", p=0.5),
                ],
            ),
        ],
    ),
    dict(type="PackInputs"),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
