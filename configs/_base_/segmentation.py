# What every segmentation model shares: it counts in iterations.
_base_ = "default_runtime.py"
custom_imports = dict(imports=["soft_vit.engine", "soft_vit.dense.segmentation"], allow_failed_imports=False)
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False),
    class_names=dict(type="ClassNamesHook"),
    # The data in words and in data.png, and after each validation predictions.png and curve.png.
    report=dict(type="DenseReportHook"),
)
log_processor = dict(by_epoch=False)
