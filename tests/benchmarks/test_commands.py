"""Commands on the tiniest sizes: their pages, files, and mistakes, each of which ends in one line.

tests/test_pages.py runs all that pages show.
"""

import csv

import pytest

from benchmarks.__main__ import main
from benchmarks.atlas import check, measure, models
from benchmarks.atlas.table import AttentionRow, ModelRow, read_table
from benchmarks.timer import MODES
from soft_vit.weights.files import RESOURCES

SMALL = "--img-size 32 --batch-size 2 --rounds 3"
DATA = f"data --config {RESOURCES}/configs/soft_tiny.py --generate 4 --batch-size 2 --rounds 3 --workers 0"
MODEL_COLUMNS = "date,machine,case,dtype,model,mode,batch_size,median,lower,upper,memory_mb,gflops,of_peak"
OPERATOR_COLUMNS = "date,machine,case,dtype,operator,direction,tokens,median_ms,lower_ms,upper_ms,memory_mb"

# A command, a row of its page, the columns of its CSV file, and how many rows that has.
COMMANDS = {
    f"models soft_pico soft_pico+naive {SMALL} --memory": ("| training | soft_pico+naive | 2 |", MODEL_COLUMNS, 4),
    f"models soft_pico {SMALL} --modes inference --profile": ("## soft_pico, inference, batch 2", MODEL_COLUMNS, 1),
    "operator naive newton --tokens 20 40 --batch-size 1 --rounds 3 --spread 0.2": (
        "| forward+backward | 40 | newton |",
        OPERATOR_COLUMNS,
        8,
    ),
    "operator newton --tokens 20 --shape 2 16 4 --passes forward --rounds 3 --dtype bfloat16": (
        "| forward | 20 | newton |",
        OPERATOR_COLUMNS,
        1,
    ),
    "packed linear softmax --images 3 --tokens 2 9 --shape 2 4 --rounds 3": ("| linear | forward |", "", 0),
    DATA: ("| 0 | timm |", "", 0),
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_command(command, tmp_path, capsys):
    row, columns, count = COMMANDS[command]
    main([*command.split(), "--device", "cpu", "--out", str(tmp_path / "new" / "two.v1.csv")])
    page = (tmp_path / "new" / "two.v1.md").read_text()
    assert page in capsys.readouterr().out
    assert f"\n`python -m benchmarks {command} --device cpu" in page
    assert "; torch" in page.splitlines()[4]
    assert f"\n{row}" in page
    written = tmp_path / "new" / "two.v1.csv"
    assert written.exists() == bool(columns)
    if columns:
        with written.open() as file:
            head, *rows = csv.reader(file)
        assert ",".join(head) == columns
        assert len(rows) == count


def test_the_zoo_is_measured_group_by_group(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("benchmarks.models.measure_models", lambda names, **_: asked.append(names) or [])
    main(["models", "--zoo", "--device", "cpu", "--out", str(tmp_path / "zoo")])
    assert "\n## Relative to pvt_v2_b1\n" in (tmp_path / "zoo.md").read_text()
    assert [names[0] for names in asked] == ["swin_tiny_patch4_window7_224", "pvt_v2_b1", "deit_tiny_patch16_224"]


def test_the_atlas_continues(tmp_path, monkeypatch, capsys):
    modes = iter(("training", "inference"))

    def measure_again(rows, *, kinds, tokens, seconds, device):
        assert (kinds, tokens, device) == (["soft"], [196, 784], "cpu")
        mode = next(modes)
        for number in tokens:
            for kind, ratio in (("softmax", 1.0), ("soft", 400 / number)):
                rows = [*rows, AttentionRow(kind, "N", mode, 32, number, 5, *[ratio] * 6, 1.0)]
            yield rows

    monkeypatch.setattr(measure, "measure", measure_again)
    monkeypatch.setattr("benchmarks.atlas.pictures.DPI", 10)
    command = f"atlas --kinds soft --tokens 196 784 --device cpu --out {tmp_path}".split()
    main(command)
    names = {f"{name}_32.png" for name in ("inference", "training", "memory", "crossovers")}
    assert {path.name for path in tmp_path.iterdir()} == {"atlas.csv", *names}
    # A second run continues with the rows, and its command joins the first.
    main([*command, "--seconds", "9"])
    found = read_table(tmp_path / "atlas.csv")
    assert len(found.rows) == 8
    assert found.command.count(" && python -m benchmarks atlas") == 1
    capsys.readouterr()
    named = tmp_path / check.EXAMPLE
    (tmp_path / "atlas.csv").rename(named)
    main(["check", str(named)])
    assert capsys.readouterr().out == f"{named} can be submitted.\n"
    named.write_text(named.read_text().replace("# machine: ", "# machine: another "))
    named.rename(tmp_path / "atlas.csv")
    with pytest.raises(SystemExit, match="another"):
        main(command)
    with pytest.raises(SystemExit, match=check.EXAMPLE):
        main(["check", str(tmp_path / "atlas.csv")])


def test_models_of_the_atlas(tmp_path, monkeypatch):
    def measure_again(names, done, *, sizes, forms, batches, max_batch_size, rounds, device):
        assert (names, done, sizes) == (["soft_pico"], [], [(64, 64), (64, 96)])
        assert (forms, batches) == (["eager"], [1, "auto"])
        yield []
        figures = ("64", 1, "eager", 1.5, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0)
        yield [ModelRow("soft_pico", mode, *figures) for mode in MODES]

    monkeypatch.setattr(models, "measure_cases", measure_again)
    options = "--sizes 64 64x96 --forms eager --batches 1 auto --device cpu"
    main(f"atlas-models soft_pico {options} --out {tmp_path}".split())
    infer, train = (tmp_path / f"models_{name}.csv" for name in ("infer", "train"))
    assert infer.read_text().splitlines()[-1] == "soft_pico,64,1.5,2.5,1,3,4,5,eager,1,2,"
    assert train.read_text().splitlines()[-1] == "soft_pico,1.5,2.5,1,64,3,eager,1,2,"


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("models", "--zoo"),
        ("models soft_pic", "soft_pico"),
        ("models soft_pico --batch-size 0", "0"),
        ("models mixer_s32_224 --img-size 64", "mixer_s32_224"),
        ("models soft_pico --batch-size 17179869184", "memory"),
        ("models soft_pico --out file/rows", "rows.md"),
        ("operator newton --tokens 20 0", "tokens"),
        ("attentions soft --rounds 2", "rounds"),
        ("memory resnet18", "resnet18"),
        ("resolution linformer_pyramid_pico --rounds 0", "max_bottleneck"),
        ("resolution soft_pico --img-size small", "--img-size"),
        ("atlas --kinds sofd", "'sofd'"),
        ("atlas --tokens 200", "200"),
        ("atlas-models soft_pico --rounds 2", "rounds"),
        ("check atlas-fp32-pt2110-cpu-none.csv", "cpu-none.csv"),
        (f"{DATA} --workers -1", "workers"),
        (f"{DATA} --config {RESOURCES}/configs/demo/soft_pico_shapes.py", "data_root"),
    ],
)
def test_mistake_ends_in_one_line(command, value, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    line = ended.value.code
    if line == 2:
        line = capsys.readouterr().err.splitlines()[-1].partition(": ")[2]
    assert line.startswith("error: ")
    assert value in line
    assert "\n" not in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
