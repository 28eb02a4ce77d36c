"""Models of timm for which it is known where softmax is."""

import pytest

from studies.timm_models import Row, main, measure, models_tables, read_rows


@pytest.mark.parametrize(
    ("name", "softmax", "exponent"),
    [
        ("test_efficientnet", "", None),
        ("test_vit", "1: full", 2),
        # ReLU instead of softmax, and gates over channels or branches.
        ("efficientvit_b0", "", 1),
        (
            "resnest14d",
            "2: rows of fixed length; 3: rows of fixed length; 4: rows of fixed length; 5: rows of fixed length",
            None,
        ),
        # Softmax of keys over the tokens, one row for each of their channels.
        ("lambda_resnet26rpt_256", "4: 16 rows; 5: 16 rows", 2),
        # Resizes every image to its own size, unless it is built for another.
        pytest.param("crossvit_tiny_240", "1: full + one row", 2, marks=pytest.mark.slow),
        # Takes one size.
        ("efficientformer_l1", "4: at its only size", None),
    ],
)
def test_known_models(name, softmax, exponent):
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
