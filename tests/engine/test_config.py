"""Slips in configs are said early."""

import warnings

import pytest
from mmengine.config import Config

from soft_vit.engine.config import apply_options, check_keys, known_keys, load_config
from soft_vit.engine.config_values import type_name


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("train_cfgs", "train_cfg"),
        ("optim_wraper", "optim_wrapper"),
        ("random_ness", "randomness"),
    ],
)
def test_slip_is_refused(slip, meant):
    with pytest.raises(ValueError, match=f"sets '{slip}', which nothing reads; did you mean '{meant}'"):
        check_keys(Config({slip: {}}))


def test_known_and_helper_names_pass_in_silence():
    names = [*known_keys(), "train_pipeline", "test_pipeline", "dataset_type", "backend_args", "metainfo", "norm_cfg"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_keys(Config(dict.fromkeys(names, 1)))


def test_stranger_is_warned_of():
    with pytest.warns(UserWarning, match="sets frobnicate, which MMEngine does not read"):
        check_keys(Config({"frobnicate": 1}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model = dict(", "was never closed"),
        (b"# caf\xe9", "can't decode byte 0xe9"),
    ],
)
def test_unreadable_config(tmp_path, content, message):
    """The reason stands in the sentence, whatever the kind of error."""
    file = tmp_path / "c.py"
    file.write_bytes(content)
    message = rf"cannot be read \(.*{message}"
    with pytest.raises(ValueError, match=message):
        load_config(file)


def test_pure_python_config(tmp_path):
    """MMEngine's other style imports its classes; what it imports is no key, however much it looks like one."""
    file = tmp_path / "c.py"
    file.write_text(
        "from mmengine.visualization import Visualizer\n"
        "from soft_vit.engine import ClassificationMetric\n"
        "visualizer = dict(type=Visualizer)\n"
        "val_evaluator = [dict(type=ClassificationMetric, topk=(1, 3))]\n"
    )
    config = load_config(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_keys(config)
    assert config.to_dict() == {
        "visualizer": {"type": "mmengine.visualization.Visualizer"},
        "val_evaluator": [{"type": "soft_vit.engine.ClassificationMetric", "topk": (1, 3)}],
    }
    assert config.filename == str(file)


@pytest.mark.parametrize(
    ("entry", "name"), [({"type": "EMAHook"}, "EMAHook"), ({"type": "mmengine.hooks.EMAHook"}, "EMAHook"), ({}, "")]
)
def test_type_name(entry, name):
    assert type_name(entry) == name


def test_missing_config(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no config"):
        load_config(tmp_path / "none.py")


def test_configs_of_the_package_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/demo/soft_pico_shapes.py").model.model_name == "soft_pico"
    with pytest.raises(FileNotFoundError, match="There is no config"):
        load_config("configs/demo/none.py")
    own = tmp_path / "configs" / "demo" / "soft_pico_shapes.py"
    own.parent.mkdir(parents=True)
    own.write_text("x = 1")
    assert load_config("configs/demo/soft_pico_shapes.py").x == 1


def test_options():
    config = Config({"a": {"b": 1}, "hooks": [{"x": 1}]})
    apply_options(config, {"a.b": 2, "hooks.0.x": 3})
    assert (config.a.b, config.hooks[0].x) == (2, 3)
    with pytest.raises(ValueError, match="do not fit the config"):
        apply_options(config, {"hooks.5.x": 3})


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("train_pipeline.0.prob", r"set train_dataloader\.dataset\.pipeline\.0\.prob instead"),
        ("max_epochs", "leave it out"),
        ("batch_size", "leave it out"),
        ("data_root", "leave it out"),
        ("optim_wraper.type", "did you mean 'optim_wrapper'"),
    ],
)
def test_options_that_nothing_reads(option, advice):
    value = "x" if option == "data_root" else 1
    with pytest.raises(ValueError, match=f"The option {option} changes nothing that a run reads; {advice}"):
        load_config("configs/demo/soft_pico_shapes.py", {option: value})


@pytest.mark.parametrize(
    "options",
    [{"image_size": 32}, {"num_classes": 10}, {"env_cfg.cudnn_benchmark": True}, {"find_unused_parameters": True}],
)
def test_options_that_are_read(options):
    check_keys(load_config("configs/demo/soft_pico_shapes.py", options))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "env_cfg.cudnn_benchmrk",
            "env_cfg sets 'cudnn_benchmrk', which nothing reads; did you mean 'cudnn_benchmark'",
        ),
        ("optim_wrapper.paramwise_cfg.norm_decay_mul", "did you mean 'norm_decay_mult'"),
        ("auto_scale_lr.batch", "auto_scale_lr sets 'batch'"),
    ],
)
def test_slip_inside_an_entry(option, message):
    with pytest.raises(ValueError, match=message):
        check_keys(load_config("configs/demo/soft_pico_shapes.py", {option: 1}))
