# What every detector shares.
_base_ = "default_runtime.py"
custom_imports = dict(imports=["soft_vit.engine", "soft_vit.dense.detection"], allow_failed_imports=False)
default_hooks = dict(
    class_names=dict(type="ClassNamesHook"),
    # The data in words and in data.png, and after each validation predictions.png and curve.png.
    report=dict(type="DenseReportHook"),
)
