"""Metrics as text and tables."""

import torch

from soft_vit.engine.report import confusion_csv, metrics_table, per_class_csv


def test_tables():
    table = torch.tensor([[3, 1, 0], [0, 0, 0], [1, 1, 2]])
    assert per_class_csv(table, ["a", "b,c", "d"]).splitlines() == [
        "class,images,correct,accuracy/top1",
        "a,4,3,75.00",
        '"b,c",0,0,',
        "d,4,2,50.00",
    ]
    assert confusion_csv(table, [7, 8, 9]).splitlines() == ["true \\ predicted,7,8,9", "7,3,1,0", "8,0,0,0", "9,1,1,2"]
    metrics = {"accuracy/top1": 97.8, "cross_entropy": 0.12345, "images": 1000}
    assert metrics_table(metrics).splitlines() == ["accuracy/top1: 97.80", "cross_entropy: 0.1235", "images: 1000"]
