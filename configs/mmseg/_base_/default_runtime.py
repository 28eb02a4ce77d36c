# What every run with mmseg shares: registrations, hooks, logs, seeds.
# pip install -e '.[mmdet]' brings mmseg, without a compiler.
default_scope = "mmseg"
# The first one stands in for the compiled part of mmcv where there is none.
custom_imports = dict(
    imports=["soft_vit.dense.mmcv_ext", "mmseg", "soft_vit.engine", "soft_vit.dense"], allow_failed_imports=False
)

default_hooks = dict(
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type="ParamSchedulerHook"),
    # Atomic writes; and MMEngine's own hook deletes the last checkpoint before it writes the next.
    checkpoint=dict(type="SafeCheckpointHook", by_epoch=False, interval=16000, max_keep_ckpts=2),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    # Refuses what does not fit before the first step, and resuming where the position in the data would be lost.
    checks=dict(type="RunChecksHook"),
    batch_position=dict(type="BatchPositionHook"),
    visualization=dict(type="SegVisualizationHook"),
)
log_processor = dict(type="LogProcessor", window_size=50, by_epoch=False)
visualizer = dict(
    type="SegLocalVisualizer",
    vis_backends=[dict(type="JsonLinesBackend"), dict(type="TensorboardVisBackend")],
)

env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0),
    dist_cfg=dict(backend="nccl"),
)
randomness = dict(seed=0, diff_rank_seed=True)
log_level = "INFO"
load_from = None
resume = False
