# python tools/train.py configs/bags/gated.py --cfg-options data_root=bags.csv
# Attention-based learning from bags of features: gated attention (Ilse et al., arXiv 1802.04712, Eq. 9). The CSV has
# the columns file and label, and split if bags are not to be divided by chance. Not tuned.
_base_ = "../_base_/default_runtime.py"

data_root = None

# The data tell what is None.
model = dict(type="BagClassifier", in_features=None, num_classes=None, pool="gated", dim=256, drop=0.1)
loader = dict(batch_size=1, num_workers=2, persistent_workers=True, collate_fn=dict(type="pseudo_collate"))
train_dataloader = dict(
    dataset=dict(type="BagDataset", split="train"), sampler=dict(type="DefaultSampler", shuffle=True), **loader
)
val_dataloader = dict(
    dataset=dict(type="BagDataset", split="val", test_mode=True),
    sampler=dict(type="DefaultSampler", shuffle=False),
    **loader,
)
test_dataloader = dict(
    dataset=dict(type="BagDataset", split="test", test_mode=True),
    sampler=dict(type="DefaultSampler", shuffle=False),
    **loader,
)
val_evaluator = [dict(type="ClassificationMetric", topk=1), dict(type="AreaUnderCurve")]
test_evaluator = val_evaluator

train_cfg = dict(type="ExactEpochLoop", max_epochs=20)
val_cfg = dict()
test_cfg = dict()
optim_wrapper = dict(
    type="SafeOptimWrapper",
    optimizer=dict(type="AdamW", lr=3e-4, weight_decay=1e-2),
    clip_grad=dict(max_norm=5.0),
    # Bags of different lengths need no padding, and a step is that of eight.
    accumulative_counts=8,
)
param_scheduler = [dict(type="CosineAnnealingLR", eta_min_ratio=0.01, by_epoch=True, convert_to_iter_based=True)]
