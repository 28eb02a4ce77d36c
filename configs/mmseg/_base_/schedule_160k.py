# As mmseg trains UPerNet on pyramids of this kind (arXiv 2103.14030, Appendix A2.3): 160,000 steps in batches of 16,
# 1,500 of warm-up, then a linear decay. No weight decay on norms and embeddings.
train_cfg = dict(type="IterBasedTrainLoop", max_iters=160000, val_interval=16000)
val_cfg = dict(type="ValLoop")
test_cfg = dict(type="TestLoop")

optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys=dict(pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)),
    ),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", eta_min=0.0, power=1.0, by_epoch=False, begin=1500, end=160000),
]
# The batch that the learning rate belongs to; `--auto-scale-lr` scales it for another one.
auto_scale_lr = dict(base_batch_size=16, enable=False)
