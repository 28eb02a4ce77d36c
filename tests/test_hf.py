"""Attentions in models of transformers: by name, and swapped into them."""

import copy
from importlib import import_module
from typing import Any

import pytest
import timm
import torch
from attention_cases import randomize, relative_error
from models.zoo.families import FAMILIES
from models.zoo.generated import shapes
from torch import Tensor, nn

import soft_vit
from soft_vit.functional import FUNCTIONAL_KINDS

transformers = pytest.importorskip("transformers")
hf = import_module("soft_vit.hf")

SMALL = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, patch_size=4)
# The name of a class without Model, and what its config takes.
VISION = dict(SMALL, image_size=24, intermediate_size=32)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", VISION),
    "deit": ("DeiT", VISION),
    "dinov2": ("Dinov2", dict(SMALL, image_size=24)),
    "registers": ("Dinov2WithRegisters", dict(SMALL, image_size=24)),
    "dinov3": ("DINOv3ViT", dict(VISION, num_attention_heads=2)),
    "dinov3 bias": ("DINOv3ViT", dict(VISION, num_attention_heads=2, value_bias=False)),
    "siglip": ("SiglipVision", VISION),
    "siglip2": ("Siglip2Vision", dict(SMALL, num_patches=36, intermediate_size=32)),
    "clip": ("CLIPVision", VISION),
}
# The others differ from these in names of layers alone.
QUICK = ("vit", "registers", "dinov3", "dinov3 bias", "siglip2")
SIZES = [(4, 6), (3, 5), (1, 1), (5, 4)]


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (name not in QUICK)


every_model = pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in MODELS])


def make(name: str) -> Any:
    torch.manual_seed(0)
    kind, options = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**options)
    return randomize(getattr(transformers, f"{kind}Model")(config).double().eval())


def inputs(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if name != "siglip2":
        return {"pixel_values": torch.randn(2, 3, 24, 24, generator=generator, dtype=torch.float64)}
    sizes, pixels = torch.tensor(SIZES), torch.randn(len(SIZES), 36, 48, generator=generator, dtype=torch.float64)
    mask = torch.arange(36) < sizes.prod(1)[:, None]
    return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": sizes}


def tokens_of(model: Any, images: dict[str, Tensor]) -> Tensor:
    """The tokens `[T, C]` of all images, without padding."""
    y = model(**images).last_hidden_state
    mask = images.get("pixel_attention_mask")
    return y.flatten(0, 1) if mask is None else y[mask]


def alone(images: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    length = int(images["pixel_attention_mask"][i].sum()) if len(images) > 1 else None
    return {key: x[i : i + 1, :length] if key != "spatial_shapes" else x[i : i + 1] for key, x in images.items()}


def budget(name: str) -> float:
    """SigLIP2 resamples positions and DINOv3 computes angles in fp32, with other roundings in another call."""
    return 1e-7 if name.startswith(("siglip2", "dinov3")) else 1e-12


@pytest.fixture(scope="module")
def registered() -> list[str]:
    return hf.register()


@every_model
def test_attention_by_name(name, registered):
    model, images = make(name), inputs(name)
    own = tokens_of(model, images)
    assert registered == [f"soft_vit_{kind}" for kind in FUNCTIONAL_KINDS]
    for kind in FUNCTIONAL_KINDS:
        model.set_attn_implementation(f"soft_vit_{kind}")
        found = tokens_of(model, images)
        assert (relative_error(found, own) < 1e-12) == (kind == "softmax"), kind
        one = torch.cat([tokens_of(model, alone(images, i)) for i in range(len(images["pixel_values"]))])
        assert relative_error(found, one) < budget(name), kind


# One model with every way of swapping; the others with their own attention and with one that needs their maps.
SWAPS: list[Any] = [("vit", kind) for kind in ("linear", "soft", "nystrom", "bigbird")]
SWAPS += [pytest.param(name, kind, marks=marks(name)) for name in MODELS for kind in ("softmax", "local")]


@pytest.mark.parametrize(("name", "kind"), SWAPS)
def test_swap(name, kind, tmp_path):
    model, images = make(name), inputs(name)
    shared = model.config
    own, before = tokens_of(model, images), sum(parameter.numel() for parameter in model.parameters())
    report = soft_vit.swap_attention(model, kind, blocks=[-1] if kind == "bigbird" else None)
    if kind == "bigbird":
        # The config notes each swap.
        soft_vit.swap_attention(model, "linear", blocks=[0], features="relu")
    # The config of another model, too.
    assert not hasattr(shared, "soft_vit")
    assert not any(getattr(part, "config", None) is shared for part in model.modules())
    assert report.params_before <= before
    assert report.blocks == ([1] if kind == "bigbird" else [0, 1])
    if kind == "softmax":
        assert (report.new, report.dropped, report.flops_after) == ([], [], report.flops_before)
        assert relative_error(tokens_of(model, images), own) < 1e-12
    found = tokens_of(randomize(model), images)
    one = torch.cat([tokens_of(model, alone(images, i)) for i in range(len(images["pixel_values"]))])
    assert relative_error(found, one) < budget(name)
    model.save_pretrained(tmp_path)
    loaded = hf.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded) is type(model)
    assert relative_error(tokens_of(loaded, images), found) < budget(name)


# SigLIP2 has images of many shapes, which linformer refuses.
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in MODELS if name != "siglip2"])
def test_a_name_that_transformers_renames(name, tmp_path):
    make(name).save_pretrained(tmp_path / "teacher")
    model, images = type(make(name)).from_pretrained(tmp_path / "teacher", dtype=torch.float64), inputs(name)
    soft_vit.swap_attention(model, "linformer", proj_k=5)
    for folder in ("first", "again"):
        model.save_pretrained(tmp_path / folder)
        loaded = hf.from_pretrained(tmp_path / folder, dtype=torch.float64)
        assert relative_error(tokens_of(loaded, images), tokens_of(model, images)) < budget(name)
        model = loaded
    # What transformers cannot fit would hold whatever was in memory.
    with pytest.raises(ValueError, match="mismatched"):
        hf.from_pretrained(tmp_path / "again", image_size=32, ignore_mismatched_sizes=True)


def test_another_head_on_a_swapped_model_of_a_subfolder(tmp_path):
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=3, **VISION)).double().eval()
    soft_vit.swap_attention(model, "soft", max_bottleneck=(2, 2))
    model.save_pretrained(tmp_path / "model")
    loaded = hf.from_pretrained(tmp_path, subfolder="model", dtype=torch.float64)
    assert relative_error(loaded(**inputs("vit")).logits, model(**inputs("vit")).logits) < 1e-12
    loaded = hf.from_pretrained(tmp_path, subfolder="model", num_labels=5, ignore_mismatched_sizes=True)
    assert loaded.double()(**inputs("vit")).logits.shape == (2, 5)


def test_a_swapped_model_follows_the_size_of_its_images():
    model = make("dinov2")
    soft_vit.swap_attention(model, "local")
    wide = torch.randn(1, 3, 8, 32, dtype=torch.float64)
    y, transposed = (model(pixel_values=x).last_hidden_state for x in (wide, wide.mT))
    # Windows of both maps differ, though each has sixteen tokens.
    assert y.shape == transposed.shape
    model.train()
    gradients = []
    for switch in (model.activation_checkpointing_enable, model.activation_checkpointing_disable):
        switch()
        model.zero_grad()
        sum(model(pixel_values=x).last_hidden_state.sum() for x in (wide, wide.mT)).backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(relative_error(a, b) < 1e-10 for a, b in zip(*gradients, strict=True))


def test_adapters_on_a_swapped_model():
    peft = pytest.importorskip("peft")
    model, images = make("vit"), inputs("vit")
    soft_vit.swap_attention(model, "linear")
    plain = tokens_of(model, images)
    config = peft.LoraConfig(r=2, target_modules=["qkv"], init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(model), config).eval()
    found = tokens_of(adapted, images)
    assert relative_error(found, plain) > 1e-3
    assert relative_error(tokens_of(adapted.merge_and_unload(), images), found) < 1e-10


def test_models_of_this_package_in_transformers(tmp_path):
    pytest.importorskip("accelerate")
    config = transformers.TimmWrapperConfig(architecture="soft_pico", num_labels=3, model_args={"img_size": 32})
    model = transformers.AutoModelForImageClassification.from_config(config)
    images = [{"pixel_values": torch.randn(3, 32, 32), "labels": i % 3} for i in range(4)]
    how = dict(num_train_epochs=1, per_device_train_batch_size=2, report_to=[], use_cpu=True)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), **how)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=images)
    assert trainer.train().global_step == 2
    trainer.save_model(str(tmp_path / "saved"))
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "saved").eval()
    x = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(loaded(x).logits, model.eval()(x).logits)


def test_mistakes(registered, tmp_path):
    mistakes = [("transformers", nn.Linear(2, 2), "linear"), ("linformer", make("siglip2"), "linformer")]
    mistakes += [("hydra", make("dinov3"), "hydra"), ("blocks", make("vit"), "linear", [2])]
    for match, *arguments in mistakes:
        with pytest.raises(ValueError, match=match):
            hf.swap_attention(*arguments)
    make("vit").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json"):
        hf.from_pretrained(tmp_path)
    sizes = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    causal = transformers.LlamaModel(transformers.LlamaConfig(**sizes))
    causal.set_attn_implementation("soft_vit_linear")
    with pytest.raises(ValueError, match="causal"):
        causal(torch.zeros(1, 3, dtype=torch.long))
    attend, x = transformers.AttentionInterface()["soft_vit_softmax"], torch.zeros(1, 2, 3, 4)
    for extra in ({"position_bias": x}, {"softcap": 50.0}, {"dropout": 0.1}):
        with pytest.raises(ValueError, match=next(iter(extra))):
            attend(nn.Identity(), x, x, x, None, **extra)


@pytest.mark.parametrize(("name", "rate"), [("vit", "attention_probs_dropout_prob"), ("siglip", "attention_dropout")])
def test_dropout_of_weights_is_kept(name, rate):
    model = make(name)
    setattr(soft_vit.hf.vision_attentions(model)[0].config, rate, 0.25)
    soft_vit.swap_attention(model, "softmax")
    assert {swapped.attn.attn_drop for *_, swapped in soft_vit.hf.vision_attentions(model)[1]} == {0.25}


def test_an_encoder_in_sam(tmp_path):
    """Of the released file, every weight has a place: names and shapes are those of the golden data."""
    names = shapes("efficientvit_sam", "efficientvit_sam_l0")
    rest = {name: torch.randn(shape) for name, shape in names.items() if not name.startswith("image_encoder.")}
    small = FAMILIES["efficientvit_sam"].small | {"neck": {"channels": 256, "depth": 0, "size": (64, 64)}}
    encoder = timm.create_model("efficientvit_sam_l0", **small).eval()
    torch.save({**encoder.to_released(encoder.state_dict()), **rest}, tmp_path / "released.pt")
    model = hf.sam_model(encoder, tmp_path / "released.pt")
    loaded = {x.data_ptr(): x for name, x in model.state_dict().items() if not name.startswith("vision_encoder.")}
    assert sorted(x.sum().item() for x in loaded.values()) == sorted(x.sum().item() for x in rest.values())
    images = torch.randn(2, 3, 96, 64)
    points, boxes = torch.tensor([[[[300.0, 400.0]]], [[[9.0, 1000.0]]]]), torch.tensor([[[1.0, 2.0, 90.0, 80.0]]] * 2)
    with torch.no_grad():
        assert torch.equal(model.get_image_embeddings(images), encoder(images))
        for prompts in ({"input_points": points}, {"input_boxes": boxes}):
            found = model(pixel_values=images, **prompts)
            assert (found.pred_masks.shape, found.iou_scores.shape) == ((2, 1, 3, 256, 256), (2, 1, 3))
    torch.save(encoder.state_dict(), tmp_path / "encoder.pt")
    with pytest.raises(ValueError, match="positional_embedding"):
        hf.sam_model(encoder, tmp_path / "encoder.pt")
