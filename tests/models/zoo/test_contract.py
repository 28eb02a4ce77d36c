"""What timm expects of its models, for every model, and what this package promises in addition.

All variants are built on the meta device; a small one of each family computes.
"""

import copy
import pickle
from functools import partial

import pytest
import timm
import torch
from models.zoo.families import FAMILIES, PYRAMIDS, SAME_BODY
from models.zoo.generated import images, lists, relative_error, shapes
from timm.data import resolve_data_config
from timm.layers import DropPath
from timm.models import group_parameters
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from soft_vit.models import PYRAMID_MODELS, checkpoint_filter_fn

STAGED = {family: row for family, row in FAMILIES.items() if row.staged}
RELEASED = {name: family for family, row in STAGED.items() for name in row.models}
# Sizes differ in numbers alone; test_pyramid.py has a table of those of pyramids, and every attention.
QUICK = ("soft_pico", "soft_tiny", "soft_norm_tiny_pure", "soft_plus_pico", "linformer_pyramid_pico")
QUICK += tuple(row.models[i] for row in STAGED.values() for i in (0, -1))
MODELS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in (*RELEASED, *PYRAMID_MODELS)]
# The parameters of others have the same names, or more numbers in them.
SMALLEST = {*(row.tiny for row in STAGED.values()), *PYRAMID_MODELS}
ROWS = {**FAMILIES, **PYRAMIDS}
NORMS = (nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
# Also options that another row has too.
SLOW = (*SAME_BODY, "fused stages", "reversible")
every_family = pytest.mark.parametrize(
    "family",
    [pytest.param(family, marks=[pytest.mark.slow] * (family in SLOW)) for family, row in ROWS.items() if row.staged],
)


def create(family: str, **options) -> torch.nn.Module:
    """The small model of a family, in evaluation, whose features differ from image to image."""
    torch.manual_seed(0)
    row = ROWS[family]
    model = timm.create_model(row.tiny, **{"num_classes": 7, "img_size": 64, **row.small, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.device.type != "meta" and not options.get("pretrained"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_model(name: str) -> None:
    """Names and shapes are those of a released file if there is one, and timm's configuration fits the model."""
    model = timm.create_model(name, device="meta")
    cfg, own = model.pretrained_cfg, model.state_dict()
    # Of two sizes of VMamba, no list of names is at hand.
    if name in RELEASED and name in lists(RELEASED[name]):
        released = {key: torch.empty(shape, device="meta") for key, shape in shapes(RELEASED[name], name).items()}
        fitted = checkpoint_filter_fn(released, model)
        assert {k: v.shape for k, v in fitted.items()} == {k: v.shape for k, v in own.items()}
        model.load_state_dict(fitted, assign=True)
    assert cfg["architecture"] == name
    assert resolve_data_config(model=model)["crop_pct"] == cfg["crop_pct"]
    # ViL's head takes two tokens side by side.
    assert (model.num_classes, model.head_hidden_size) == (1000, model.num_features * (1 + name.startswith("vil2_")))
    assert own[cfg["first_conv"] + ".weight"].shape[1] == model.in_chans == 3
    classifier, found = cfg["classifier"], model.get_classifier()
    names, layers = ((classifier,), (found,)) if isinstance(classifier, str) else (classifier, found)
    assert all(model.get_submodule(name) is layer for name, layer in zip(names, layers, strict=True))
    parameters = {n for n, _ in model.named_parameters()}
    if name in SMALLEST:
        for coarse in (False, True):
            groups = group_parameters(model, model.group_matcher(coarse=coarse))
            assert {n for names in groups.values() for n in names} == parameters
            assert len(groups) > len(model.stages)
    assert set(model.no_weight_decay()) <= parameters
    if name in PYRAMID_MODELS:
        without_decay = {n for n in parameters if n.endswith(("pos_embed", "cls_token"))}
        assert set(model.no_weight_decay()) == without_decay
        assert ("stages.3.cls_token" in without_decay) == model.has_class_token
    assert tuple(cfg["pool_size"]) == model.grids(cfg["input_size"][1:])[-1]


@every_family
def test_features_and_pruning(family: str) -> None:
    """`features_only`, all forms of `forward_intermediates` and pruned models return the same features."""
    height, width = 70, 102
    model, x = create(family), images(1, height, width)
    with torch.no_grad():
        final, maps = model.forward_intermediates(x)
        torch.testing.assert_close(model.forward_features(x), final, rtol=0, atol=0)
        for feature, info in zip(maps, model.feature_info, strict=True):
            sides = (ROWS[family].side(side, info["reduction"]) for side in (height, width))
            assert feature.shape[1:] == (info["num_chs"], *sides)
            assert feature.is_contiguous()
        overlay = {"state_dict": model.state_dict()}
        options = {"num_classes": 0, "pretrained": True, "pretrained_cfg_overlay": overlay}
        extractor = create(family, features_only=True, feature_cls="fx", **options)
        wanted = [maps[i] for i in extractor.feature_info.out_indices]
        torch.testing.assert_close(extractor(x), wanted)
        other = model.forward_intermediates(x, output_fmt=model.output_formats[1], intermediates_only=True)
        torch.testing.assert_close(
            [feature.reshape(1, -1, feature.shape[-1]) for feature in other],
            [feature.flatten(2).mT for feature in maps],
        )
        for index in range(len(maps)):
            early = model.forward_intermediates(x, [index], stop_early=True, intermediates_only=True)
            torch.testing.assert_close(early, [maps[index]])
        # Of none, of one and of the others that are left.
        for index in (len(maps) - 1, len(maps) - 2, 0):
            assert model.prune_intermediate_layers([index], prune_norm=True) == [index]
            torch.testing.assert_close(model.forward_intermediates(x, [index])[1], [maps[index]])
            assert model.num_features == maps[index].shape[1]


@every_family
def test_heads_and_gradients(family: str) -> None:
    """Every parameter gets a gradient; the classifier can be removed and replaced."""
    row, model, x = ROWS[family], create(family), images(2, 64, 64)
    logits = model(x)
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.any(), name
    features = model.forward_features(x)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (2, model.head_hidden_size)
    model.reset_classifier(0)
    assert torch.equal(model(x), pooled)
    model.reset_classifier(5)
    assert model(x).shape == (2, 5)
    if not row.small.get("fuse_stages"):
        model.reset_classifier(0, "")
        assert torch.equal(model(x), features)
    with pytest.raises(ValueError, match="global_pool"):
        model.reset_classifier(5, "max")


CHECKPOINTED = [
    # In CARE alone, blocks have buffers.
    pytest.param(family, features, marks=[pytest.mark.slow] * (family in SLOW or features > (family == "care")))
    for family, row in ROWS.items()
    for features in (False, True)
    if row.staged
]


@pytest.mark.parametrize(("family", "features_only"), CHECKPOINTED)
def test_a_training_step_is_the_same_with_checkpointing(family: str, features_only: bool) -> None:
    """Outputs, gradients and buffers, such as the statistics of a BatchNorm."""
    options, steps = {"features_only": True} if features_only else {"drop_path_rate": 0.5}, []
    for enable in (False, True):
        model = create(family, **options).train()
        getattr(model, "model", model).set_grad_checkpointing(enable)
        y = model(images(3, 40, 56))
        sum(part.square().sum() for part in y).backward()
        gradients = {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
        steps.append({"output": y, **gradients, **dict(model.named_buffers())})
    torch.testing.assert_close(steps[1], steps[0])


@every_family
def test_the_size_of_images_and_rates_reach_their_parts(family: str) -> None:
    """The size comes from timm's configuration. Every attention and MLP has dropout, except those of MILA and CARE."""
    rates = {"drop_path_rate": 0.5, **({"proj_drop_rate": 0.25} if ROWS[family].proj_drop else {})}
    cfg = {"input_size": (3, 96, 64)}
    row = ROWS[family]
    model = timm.create_model(row.tiny, device="meta", pretrained_cfg_overlay=cfg, **rates, **row.small)
    assert pickle.loads(pickle.dumps(model)).img_size == model.img_size == (96, 64)
    without = ("head_drop", "pos_drop", "attn_drop", *(["attn.proj_drop"] if family in ("mila", "care") else []))
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and "proj_drop_rate" in rates and not name.endswith(without):
            assert module.p == 0.25, name
    assert max(module.drop_prob for module in model.modules() if isinstance(module, DropPath)) == 0.5


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@every_family
def test_any_size_and_any_neighbours(family: str) -> None:
    """Logits of an image do not depend on its batch, also under torch.func; a set image size is as good as a given."""
    model = create(family, img_size=(64, 96)).double()
    weights = copy.deepcopy(model.state_dict())
    x = images(3, 72, 100).double()
    x[1] *= 0.01
    model.set_input_size((72, 100))
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(image[None]) for image in x])
        tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
        call = partial(torch.func.functional_call, model, tensors)
        mapped = torch.func.vmap(lambda image: call(image[None])[0])(x)
    assert (together[0] - together[1]).norm() > 1e-4 * together.norm()
    for logits in (alone, mapped):
        torch.testing.assert_close(together, logits, rtol=1e-10, atol=1e-10)
    # What belongs to the other size is resampled as it is loaded.
    built = create(family, img_size=(72, 100)).double()
    built.load_state_dict(weights)
    torch.testing.assert_close(built.state_dict(), model.state_dict())
    torch.testing.assert_close(built(x), together)
    for call in (lambda: model(x[:, :, :16]), lambda: model.set_input_size(16)):
        with pytest.raises(ValueError, match="16"):
            call()
    torch.testing.assert_close(model(x), together)


# Far above rounding, and below the error of 1 of numbers that are read in another order than they are in memory.
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.3}


DTYPES = [pytest.param(dtype, marks=[pytest.mark.slow] * (dtype != torch.float64)) for dtype in BOUNDS]


@pytest.mark.parametrize("dtype", DTYPES)
@every_family
def test_an_image_alone_has_the_gradients_it_has_in_a_batch(family: str, dtype: torch.dtype) -> None:
    """Of images in memory as they are decoded: rows, columns, channels."""
    model, results = create(family).to(dtype), []
    x = images(2, 40, 56).to(dtype).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for parts in (x[:, None], x[None]):
        given = [part.detach().requires_grad_() for part in parts]
        logits = torch.cat([model(part) for part in given])
        grads = torch.autograd.grad(logits.double().square().sum(), [*given, *model.parameters()])
        of_images, of_parameters = torch.cat(grads[: len(given)]), grads[len(given) :]
        results.append((logits, of_images, torch.cat([grad.flatten() for grad in of_parameters])))
    for alone, together in zip(*results, strict=True):
        assert relative_error(alone, together) <= BOUNDS[dtype]


@pytest.mark.parametrize("way", ["hook", "class", "forward", "acts"])
@every_family
def test_layers_are_called_where_it_shows(family: str, way: str) -> None:
    """Hooks wait for a call, and adapters replace the class of a layer, or its forward, and compute there."""
    model, called, layers = create(family).eval(), set(), set()
    kinds = (nn.GELU, nn.ReLU, nn.SiLU, *NORMS) if way == "acts" else (nn.Linear, nn.Conv2d)
    for name, layer in model.named_modules():
        if isinstance(layer, kinds):
            if way == "class":
                layer.__class__ = type("Adapter", (type(layer),), {})
            if way == "forward":
                layer.forward = lambda *args, name=name, own=layer.forward: (called.add(name), own(*args))[1]
            else:
                layer.register_forward_hook(lambda *_, name=name: called.add(name))
            layers.add(name)
    torch.no_grad()(model.forward)(images(2, 64, 64))
    assert called == layers


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("family", [family for family, row in ROWS.items() if row.small])
def test_compiled(family: str, training: bool) -> None:
    """A graph without breaks computes the same, and the second takes any batch: below 16, oneDNN has other rules."""
    torch._dynamo.reset()
    model, counter = create(family).train(training), CompileCounterWithBackend("aot_eager")
    if ROWS[family].staged:
        model.set_grad_checkpointing(training)
    compiled, before = torch.compile(model, fullgraph=True, backend=counter), copy.deepcopy(model.state_dict())
    another_size = [(2, 64, 96)] * (family in FAMILIES and not training)
    for shape in ((16, 64, 64), (17, 64, 64), (19, 64, 64), *another_size):
        given, results = images(*shape), []
        for form in (model, compiled):
            with torch.set_grad_enabled(training):
                y = form(given)
            how = dict(allow_unused=True, materialize_grads=True)
            grads = torch.autograd.grad(y.square().sum(), [*model.parameters()], **how) if training else (y,)
            # Some have none.
            buffers = torch.cat([torch.ones(1).double(), *(x.flatten().double() for x in model.buffers())])
            results.append((y.detach(), torch.cat([x.flatten() for x in grads]), buffers.clone()))
            model.load_state_dict(before)
        for eager, graph in zip(*results, strict=True):
            assert relative_error(graph, eager) < (1e-4 if training else 1e-5)
        assert counter.frame_count <= 2 + (shape in another_size)
