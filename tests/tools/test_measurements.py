"""The tools that count and measure: their tables, and the files beside them."""

import csv
import re

import pytest
import timm
import torch

from benchmarks import attentions as compare
from benchmarks import memory, operator, resolution
from benchmarks import models as throughput
from benchmarks.atlas import measure, models, table
from benchmarks.atlas.table import Row
from benchmarks.resolution import Cost
from soft_vit.data.shape_trees import make_tree
from soft_vit.models.zoo import ZOO
from soft_vit.weights.files import RESOURCES

MODELS = "soft_pico soft_pico+naive --img-size 32 --batch-size 2 --rounds 3 --device cpu"
SIZES = "--num-bottleneck 4 --rounds 3 --device cpu"
OPERATOR = f"--op naive newton --tokens 20 40 {SIZES}"
INVERSE = f"--op newton_inverse-products newton_inverse --problems 3 5 {SIZES}"


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [(MODELS, 4), (f"{MODELS} --batch-size auto --max-batch-size 2", 4), (f"{OPERATOR} --bandwidth", 8), (INVERSE, 8)],
    ids=["models", "auto", "operator", "inverse"],
)
def test_benchmark(tool, arguments, rows, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(operator, "COPIED_BYTES", 1 << 20)
    tool("benchmark")([*arguments.split(), "--out", str(tmp_path / "new" / "rows.csv")])
    head, _, *table = capsys.readouterr().out.splitlines()
    assert "torch" in head
    assert "float32" in head
    assert len([line for line in table if re.match(r"\| (forward|inference|training)", line)]) == rows
    found = list(csv.DictReader((tmp_path / "new" / "rows.csv").open()))
    assert len(found) == rows
    assert found[0]["machine"] in head
    if "--bandwidth" in arguments:
        assert head.endswith(" GB/s")
        assert "% of bandwidth | extra memory" in table[0]
        assert all(float(row["bandwidth_gb_per_s"]) > 0 < float(row["gb_per_s"]) for row in found)
        assert all(float(row["extra_memory"]) >= 0 for row in found)


def test_benchmark_zoo(tool, tmp_path, monkeypatch, capsys):
    def measure(names, *, batch_size, rounds, device):
        assert (batch_size, rounds, device) == (2, 3, "cpu")
        assert all(map(timm.is_model, names))
        return [throughput.Timing(name, "inference", 2, 10.0 + i, 9.0, 20.0) for i, name in enumerate(names)]

    monkeypatch.setattr(throughput, "measure_throughput", measure)
    tool("benchmark_zoo")(f"--batch-size 2 --rounds 3 --device cpu --out {tmp_path / 'new' / 'zoo.md'}".split())
    text = (tmp_path / "new" / "zoo.md").read_text()
    assert text in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "new" / "zoo.csv").open()))
    assert text.count("| inference |") == len(rows)
    measured = {row["model"] for row in rows}
    assert measured - ZOO.keys() == {row["beside"] for row in rows}
    # Every family and body.
    assert {ZOO[name] for name in measured & ZOO.keys()} == {*ZOO.values()}


def test_attention_health_on_images_of_a_folder(tool, tmp_path, capsys):
    make_tree(tmp_path / "tree", "imagefolder", train=1, val=20, size=64)
    data, few = str(tmp_path / "tree" / "val"), ["--num-images", "20", "--num-matrices", "1"]
    tool("attention_health")(["--model", "soft_pico", "--data", data, *few])
    top1 = re.search(r"Top-1 ([\d.]+) %, .* on 20 images", capsys.readouterr().out)
    assert float(top1[1]) > 90, "98 % on all generated images"
    with pytest.raises(SystemExit, match="none of the 1000 classes"):
        tool("attention_health")(["--model", "soft_tiny", "--no-pretrained", "--data", data, *few])


def test_benchmark_data(tool, capsys):
    config = str(RESOURCES / "configs" / "soft_tiny.py")
    few = ["--generate", "4", "--workers", "0", "--batch-size", "2", "--rounds", "2"]
    tool("benchmark_data")([*few, "--config", config])
    head, _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert head.endswith(f"{config}, 4 generated JPEGs of 500 x 375")
    assert [row.split(" | ")[:2] for row in rows] == [["| 0", "soft_vit"], ["| 0", "timm"]]


def test_benchmark_resolution(tool, tmp_path, monkeypatch, capsys):
    def measure(name, sizes, forms, *, device, rounds, max_seconds):
        assert rounds == 0
        return [Cost(form, size, 2**20) for form in forms for size in sizes]

    monkeypatch.setattr(resolution, "measure_resolutions", measure)
    out = tmp_path / "folder" / "table.md"
    tool("benchmark_resolution")(f"soft_pico --img-size 64 96x64 --rounds 0 --device cpu --out {out}".split())
    printed = capsys.readouterr().out
    assert "one image, float32, forward and backward of soft_pico" in printed
    assert printed.count("| 96 x 64 |") == 2
    assert out.read_text() in printed


def test_compare_attention(tool, tmp_path, monkeypatch, capsys):
    def measure(attentions, **options):
        expected = dict(size="tiny", vit=True, img_size=(32, 64), batch_size=1, rounds=3, device="cpu")
        expected["dtype"] = torch.float32
        assert options == expected
        return [compare.Row(name, 1, 2, 3, 4, 5) for name in attentions]

    monkeypatch.setattr(compare, "compare_attentions", measure)
    out = tmp_path / "folder" / "two.v1"
    tiny = f"--device cpu --vit --size tiny --img-size 32 64 --batch-size 1 --rounds 3 --out {out}"
    tool("compare_attention")(["local", "softmax", *tiny.split()])
    printed = capsys.readouterr().out
    assert "; ViT tiny, batch 1, 32 x 64, float32." in printed
    assert (tmp_path / "folder" / "two.v1.md").read_text() in printed
    rows = list(csv.DictReader((tmp_path / "folder" / "two.v1.csv").open()))
    assert [row["attention"] for row in rows] == ["local", "softmax"]


def test_atlas(tool, tmp_path, monkeypatch, capsys):
    def measure_again(plan, rows):
        assert (plan.kinds, plan.tokens, plan.head_dims) == (["soft"], [196, 784], (32, 64))
        for tokens in plan.tokens:
            for kind, ratio in (("softmax", 1.0), ("soft", 400 / tokens)):
                figures = (ratio, ratio, ratio, ratio, ratio, ratio)
                rows = [*rows, Row(kind, "N", plan.modes[-1], 32, tokens, 5, *figures, 1.0)]
            yield rows

    monkeypatch.setattr(measure, "measure", measure_again)
    arguments = f"--kinds soft --tokens 196 784 --device cpu --out {tmp_path}".split()
    tool("atlas")(arguments)
    names = {f"{name}_32.png" for name in ("inference", "training", "memory", "crossovers")}
    assert {path.name for path in tmp_path.iterdir()} == {"atlas.csv", "figures.md", *names}
    assert "| `soft` | N | not measured | 400 | never (1.00 at 784) |" in (tmp_path / "figures.md").read_text()
    # A second run goes on with the rows, and its command joins the first.
    tool("atlas")([*arguments, "--modes", "inference"])
    found = table.read_table(tmp_path / "atlas.csv", Row)
    assert len(found.rows) == 8
    assert found.command.count(" && python tools/atlas.py") == 1
    capsys.readouterr()
    named = tmp_path / table.EXAMPLE
    (tmp_path / "atlas.csv").rename(named)
    tool("atlas")(["--check", str(named)])
    assert capsys.readouterr().out == f"{named} can be submitted.\n"
    named.write_text(named.read_text().replace("# machine: ", "# machine: another "))
    named.rename(tmp_path / "atlas.csv")
    with pytest.raises(SystemExit, match="is of another machine"):
        tool("atlas")(arguments)
    with pytest.raises(SystemExit) as ended:
        tool("atlas")(["--check", str(tmp_path / "atlas.csv")])
    assert ended.value.code == 1
    assert capsys.readouterr().out.startswith("The file is called atlas.csv")


def test_atlas_of_models(tool, tmp_path, monkeypatch):
    def measure_again(names, infer, train, *, sizes, forms, batches, max_batch_size, rounds, device):
        assert (names, sizes, forms, batches) == (["soft_pico"], [(64, 64), (64, 96)], ["eager"], [1, "auto"])
        figures = ("eager", 1.0, 2.0)
        yield [], []
        yield (
            [table.InferRow("soft_pico", "64", 1.5, 2.5, 1, 3.0, 4.0, 5.0, *figures)],
            [table.TrainRow("soft_pico", 1.5, 2.5, 1, "64", 3.0, *figures)],
        )

    monkeypatch.setattr(models, "measure_models", measure_again)
    sizes = "--sizes 64 64x96 --forms eager --batches 1 auto"
    tool("atlas")(f"--models soft_pico {sizes} --device cpu --out {tmp_path}".split())
    infer, train = (tmp_path / f"models_{name}.csv" for name in ("infer", "train"))
    assert infer.read_text().splitlines()[-1] == "soft_pico,64,1.5,2.5,1,3,4,5,eager,1,2,"
    assert train.read_text().splitlines()[-1] == "soft_pico,1.5,2.5,1,64,3,eager,1,2,"


# A convolutional model takes no img_size.
@pytest.mark.parametrize(
    ("arguments", "name", "part"),
    [
        ("soft_pico", "soft_pico", "stages"),
        ("vit_tiny_patch16_224", "vit_tiny_patch16_224", "blocks"),
        ("resnet18", "resnet18", "layer1"),
        (f"--config {RESOURCES}/configs/soft_tiny.py", "soft_tiny", "stages"),
    ],
)
def test_get_flops(arguments, name, part, tool, capsys):
    tool("get_flops")([*arguments.split(), "--img-size", "64", "96", "--depth", "1"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}, 64 x 96, torch ")
    assert part in printed


def test_get_memory(tool, monkeypatch, capsys):
    peaks = {("soft_pico", (2, 3, 32, 64), "cpu"): {"plain": 3 * 2**20, "chunks": 2**20}}
    monkeypatch.setattr(memory, "training_memory_by_saving", lambda *given: peaks[given])
    tool("get_memory")(["soft_pico", "--img-size", "32", "64", "--batch-size", "2", "--device", "cpu"])
    head, what, _, columns, _, row = capsys.readouterr().out.splitlines()
    assert head.endswith("batch 2, 32 x 64, float32.")
    assert "bytes of live tensors, counted" in what
    assert (columns, row) == ("| model | plain | chunks |", "| soft_pico | 3 | 1 |")
