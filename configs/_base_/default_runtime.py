# What every run shares: hooks, logs, seeds.
default_scope = "mmpretrain"
custom_imports = dict(imports=["soft_vit.engine"], allow_failed_imports=False)

default_hooks = dict(
    # Fits the weights of load_from to the model; what is resumed or tested must fit as it is.
    weights=dict(type="WeightsHook"),
    timer=dict(type="IterTimerHook"),
    logger=dict(type="LoggerHook", interval=50),
    param_scheduler=dict(type="ParamSchedulerHook"),
    checkpoint=dict(type="SafeCheckpointHook", interval=1, max_keep_ckpts=2),
    sampler_seed=dict(type="DistSamplerSeedHook"),
    # Saves and ends the run at a signal, see --stop-signals of tools/train.py.
    stop=dict(type="StopHook"),
    # Images per second of a test.
    throughput=dict(type="ThroughputHook"),
    # The first lines of a run: data, model, schedule, device, results.
    summary=dict(type="SummaryHook"),
    # Refuses what does not fit before the first step, and resuming where the position in the data would be lost.
    checks=dict(type="RunChecksHook"),
    batch_position=dict(type="BatchPositionHook"),
    # MMEngine would copy the whole history of each logged number in every step.
    history=dict(type="ShortHistoryHook"),
    # For TensorBoard: augmented batches, and the residual of each stage's Newton iteration.
    watch=dict(type="DiagnosticsHook"),
    # Names each image that cannot be read, and ends a run with more than this share of them.
    bad_images=dict(type="BadImagesHook", max_share=0.01),
)

# train_acc is a mean over the window as the loss is; MMEngine's own pattern would show the last batch alone.
log_processor = dict(
    type="ProgressLogProcessor", window_size=50, mean_pattern=r".*(loss|time|data_time|grad_norm|train_acc).*"
)

visualizer = dict(
    type="UniversalVisualizer",
    vis_backends=[dict(type="JsonLinesBackend"), dict(type="TensorboardVisBackend")],
)

env_cfg = dict(cudnn_benchmark=False, mp_cfg=dict(mp_start_method="fork"), dist_cfg=dict(backend="nccl"))
randomness = dict(seed=0, diff_rank_seed=True)
log_level = "INFO"
load_from = None
resume = False
