# tools/dist_train.sh configs/pretrain/soft_plus_tiny.py 8 --cfg-options data_root=/path/to/images
# SimMIM's recipe, see _base_/pretrain.py; model.model_name=NAME pre-trains any other model of soft_vit or timm. It was
# not run at this size here. The work directory holds the weights as model.safetensors, which
# `timm.create_model("local-dir:work_dirs/soft_plus_tiny", pretrained=True)` loads, and a report.
_base_ = "../_base_/pretrain.py"

model = dict(model_name="soft_plus_tiny")
