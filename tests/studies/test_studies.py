"""Studies of models: where softmax is, and claims."""

import pytest
import timm
from captured_models import TWO_STAGES
from documents import ROOT, run_tool

from studies.calls import Rows, kind_of_softmax
from studies.claims import CLAIMS, load_entries
from studies.softmax import measure_model, model_groups
from studies.timm_models import Row, main, measure, models_tables, read_rows

# Models for which it is known where softmax is, what it normalises, and how the cost of attention grows.


GROWING = [
    (Rows(3, 196, 196), Rows(3, 784, 784), "full"),
    # Keys reduced by windows grow too.
    (Rows(3, 784, 49), Rows(3, 3136, 196), "full"),
    (Rows(12, 49, 49), Rows(48, 49, 49), "windows"),
    (Rows(3, 784, 49), Rows(3, 3136, 49), "rows of fixed length"),
    (Rows(3, 49, 784), Rows(3, 49, 3136), "49 rows"),
    (Rows(3, 1, 784), Rows(3, 1, 3136), "one row"),
]


@pytest.mark.parametrize(("small", "large", "kind"), GROWING)
def test_what_grows_tells_the_kind(small: Rows, large: Rows, kind: str) -> None:
    assert kind_of_softmax(small, large) == kind


# What softmax normalises in each stage, and the exponents of growth, None where there are no products between tokens.
# Two stages show as much as four.
KNOWN = {
    # With two steps of Newton's iteration. Products with weights do not count.
    "soft_pico": ([(), ("full",)], [2.14, 2]),
    "soft_norm_pico_pure": ([(), ()], [None, 2]),
    "rala_pyramid_pico": ([("one row",), ("full",)], [1, 2]),
    "local_pyramid_pico": ([("windows",), ("full",)], [1, 2]),
    "sparse_pyramid_pico": ([("written out",), ("full",)], [None, 2]),
    "efficient_vit_tiny_patch16": ([("rows of fixed length", "64 rows")], [1]),
    "performer_vit_tiny_patch16": ([("written out",)], [1]),
    "softmax_vit_tiny_patch16": ([("full",)], [2]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models(name: str) -> None:
    softmax, slopes = KNOWN[name]
    options = {"depth": 1} if len(softmax) == 1 else TWO_STAGES
    if name.startswith("soft_"):
        options = {**options, "newton_iters": 2}
    row = measure_model(name, **options)
    assert [stage.softmax for stage in row.stages] == softmax
    for stage, slope in zip(row.stages, slopes, strict=True):
        assert slope is None or stage.slope == pytest.approx(slope, abs=0.02)
    assert not row.outside
    assert row.has_softmax == any(softmax)


def test_growth_is_from_the_own_size() -> None:
    """Windows of 12 x 12 do not divide the maps of smaller images."""
    row = measure_model("inline_swin_base_384", depths=(1, 1, 1, 1), linear_blocks=(1, 1, 0, 0))
    assert [stage.softmax for stage in row.stages] == [(), (), ("windows",), ("windows",)]
    assert [stage.slope for stage in row.stages] == pytest.approx([1] * 4, abs=0.02)


def test_pooling_by_softmax_is_outside_of_stages() -> None:
    row = measure_model("rala_pyramid_pico", attention="mala", global_pool="attn", **TWO_STAGES)
    assert row.outside == ("one row",)


def test_a_fixed_number_of_bottleneck_tokens_makes_the_cost_linear() -> None:
    stages = measure_model("soft_pico_pure", max_bottleneck=(7, 7), newton_iters=2, **TWO_STAGES).stages
    assert round(stages[0].slope) == 1


def test_every_group_names_models() -> None:
    for names, _ in model_groups().values():
        assert names
        assert all(map(timm.is_model, names))


# Models of timm for which it is known where softmax is.


OF_TIMM = [
    ("test_efficientnet", "", None),
    ("test_vit", "1: full", 2),
    # ReLU instead of softmax, and gates over channels or branches.
    ("efficientvit_b0", "", 1),
    ("resnest14d", "; ".join(f"{stage}: rows of fixed length" for stage in range(2, 6)), None),
    # Softmax of keys over the tokens, one row for each of their channels.
    ("lambda_resnet26rpt_256", "4: 16 rows; 5: 16 rows", 2),
    # Resizes every image to its own size, unless it is built for another.
    pytest.param("crossvit_tiny_240", "1: full + one row", 2, marks=pytest.mark.slow),
    # Takes one size.
    ("efficientformer_l1", "4: at its only size", None),
]


@pytest.mark.parametrize(("name", "softmax", "exponent"), OF_TIMM)
def test_known_models_of_timm(name, softmax, exponent):
    row = measure(name)
    assert row.softmax == softmax
    assert bool(row.products) == (exponent is not None or name == "efficientformer_l1")
    assert row.exponent == "" if exponent is None else float(row.exponent) == pytest.approx(exponent, abs=0.05)


def test_a_table_is_resumed(tmp_path, monkeypatch):
    known = Row("test_vit", "vision_transformer", params="0.4", softmax="1: full", products="yes", exponent="1.99")
    path = tmp_path / "timm.csv"
    path.write_text(",".join(Row._fields) + "\n" + ",".join(known) + "\n")
    main(["test_vit", "test_resnet", "--out", str(path)])
    rows = read_rows(path)
    assert rows["test_vit"] == known
    assert rows["test_resnet"].softmax == ""
    page = "\n".join(models_tables([*rows.values(), Row("broken", "family", error="RuntimeError: ...")]))
    assert "| test_resnet | resnet | softmax-free, no products |" in page
    assert "| broken | family | not measured |" in page


# The table of claims: its page, its command, and findings that are reproduced.


ENTRIES = load_entries(ROOT / "studies" / "results" / "claims.json")
# Checks without timing or training; the slow ones take a second or more.
MATHEMATICS = [1, 2, 5, 8, 16, 17, 24, 29, 31, 32, 33, 34]
MATHEMATICS += [pytest.param(number, marks=pytest.mark.slow) for number in (10, 19, 22, 25)]


@pytest.mark.parametrize("number", MATHEMATICS)
def test_finding_is_reproduced(number):
    assert CLAIMS[number].check().verdict == ENTRIES[number]["verdict"]


def test_tool_adds_to_what_is_there(tmp_path, capsys):
    command = f"python -m studies claims --out {tmp_path}/claims.json"
    run_tool(command, ["--only", "17"])
    run_tool(command, ["--only", "14", "33"])
    assert load_entries(tmp_path / "claims.json").keys() == {14, 17, 33}
    capsys.readouterr()
    run_tool(command, ["--table"])
    assert capsys.readouterr().out.count("\n| ") == 3
