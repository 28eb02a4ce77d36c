# Fine-tuning: 30 epochs, lower layers slower than higher ones. A config adds the model's name, load_from and what it
# changes in the data.
model = dict(
    type="TimmTrainClassifier",
    drop_path_rate=0.1,
    loss=dict(type="LabelSmoothLoss", label_smooth_val=0.1),
)

train_cfg = dict(type="ExactEpochLoop", max_epochs=30, val_interval=1)
optim_wrapper = dict(
    type="SafeOptimWrapper",
    constructor="TimmOptimWrapperConstructor",
    # The learning rate of the head; that of each layer below is 0.75 times the one above.
    paramwise_cfg=dict(layer_decay=0.75),
    optimizer=dict(type="AdamW", lr=5e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-2, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    # A ratio, because every layer ends at a hundredth of its own rate. It lasts as long as the run.
    dict(type="CosineAnnealingLR", eta_min_ratio=0.01, by_epoch=True, begin=1, convert_to_iter_based=True),
]
# Not scaled unless asked for: a few hundred images, in batches of 16, need steps as large as these.
auto_scale_lr = dict(base_batch_size=64, enable=False)
