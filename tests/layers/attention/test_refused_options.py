"""Options without a sense end in one sentence; kinds with a file of their own have theirs there."""

import pytest

from soft_vit.layers import ATTENTIONS


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("agent", {"max_agents": 0}, "max_agents=0"),
        ("agent", {"local_kernel": 2}, "local_kernel=2"),
        ("focused", {"power": 0}, "power=0"),
        ("focused", {"local_kernel": -1}, "local_kernel=-1"),
        ("linear", {"features": "gelu"}, "features='gelu'"),
        ("skyformer", {"max_landmarks": (0, 7)}, "max_landmarks="),
        ("skyformer", {"ridge": 0.0}, "ridge=0.0"),
    ],
    ids=str,
)
def test_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ATTENTIONS[name](24, 3, feat_size=(7, 9), **options)
