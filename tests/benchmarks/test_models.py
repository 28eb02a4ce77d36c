"""Models that are timed, their batches, and those that run out of memory."""

from benchmarks.models import measure_models

SMALL = dict(batch_size=2, img_size=(32, 32), rounds=3)


def test_every_model_is_timed_in_every_mode():
    # timm's model is built for 160 x 160 pixels; a folded model cannot train.
    names = ["soft_pico", "test_vit", "soft_pico+folded", "soft_pico"]
    timings = measure_models(names, **SMALL | dict(img_size=(32, 48)), memory=True)
    labels = ["soft_pico", "test_vit", "soft_pico+folded", "soft_pico (2)"]
    assert [(t.mode, t.target) for t in timings] == [
        *(("inference", label) for label in labels),
        *(("training", label) for label in labels if "folded" not in label),
    ]
    assert all(len(t.seconds) == 3 and t.size == 2 for t in timings)
    assert timings[0].memory < timings[4].memory
    assert {timing.flops for timing in timings if "vit" not in timing.target} == {timings[0].flops}
    assert all(timing.of_peak > 0 for timing in timings)
