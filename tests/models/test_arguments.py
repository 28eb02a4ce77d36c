"""What a pyramid cannot be made with, in one sentence each."""

import pytest
import timm
import torch

from soft_vit.models import PyramidViT


def pico(**kwargs) -> PyramidViT:
    torch.manual_seed(0)
    return timm.create_model("soft_pico", **{"num_classes": 7, "img_size": 64, **kwargs}).eval()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(attention="sofd"), "attention='sofd' is not known; did you mean soft"),
        (dict(attention=("soft", "soft")), "4 names"),
        (dict(attention=("soft",) * 4), "class_token=False|class token"),
        (dict(attention=("soft",) * 4, class_token=True), "class_token=False"),
        (dict(stage4="hard"), "stage4='hard'.*softmax"),
        (dict(num_heads=(3, 2, 4, 5)), "3 heads do not divide the width 32"),
        (dict(depths=(1, 1)), "one for each stage"),
        (dict(depths=(1, 1, 1, 0)), r"depths=\(1, 1, 1, 0\).*last stage"),
        (dict(mlp_ratios=(4, 4)), r"mlp_ratios=\(4, 4\).*one for each stage"),
        (dict(sr_ratios=(0, 1, 1, 1)), r"sr_ratios=\(0, 1, 1, 1\).*positive"),
        (dict(img_size=(64,)), r"img_size=\(64,\).*a height and a width"),
        (dict(img_size=(64, -1)), "img_size=64 x -1 is too small"),
        (dict(in_chans=0), "in_chans=0.*positive"),
        (dict(invrese="newton"), "'invrese'.*inverse"),
        (dict(inverse="lu"), "inverse='lu'.*cholesky"),
        (dict(newton_start="x"), "^newton_start='x'.*rowsum"),
        (dict(newton_gradient="x"), "^newton_gradient='x'.*unrolled"),
        (dict(sampling="x"), "sampling='x'.*random"),
        (dict(num_bottleneck=50), "num_bottleneck=50.*square"),
        (dict(bottleneck_img_size=224), r"bottleneck_img_size=224 .* num_bottleneck"),
        (dict(local_kernel=4), "local_kernel=4.*odd"),
        (dict(global_pool="max"), "global_pool='max'.*token"),
        (dict(drop_path_mode="x"), "drop_path_mode='x'.*dropout"),
    ],
    ids=str,
)
def test_mistakes_get_one_sentence(options, message):
    with pytest.raises(ValueError, match=message) as refused:
        pico(**options)
    assert len(str(refused.value).splitlines()) == 1
