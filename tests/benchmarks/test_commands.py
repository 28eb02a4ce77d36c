"""Commands on the tiniest sizes: their pages and files.

tests/test_pages.py runs all that pages show.
"""

import csv
import json
from types import SimpleNamespace

import pytest

from benchmarks import large
from benchmarks.__main__ import main
from soft_vit.weights.files import RESOURCES

SMALL = "--img-size 32 --batch-size 2 --rounds 3"
DATA = f"data --config {RESOURCES}/configs/soft_tiny.py --generate 4 --batch-size 2 --rounds 3 --workers 0"
MODEL_COLUMNS = "date,machine,case,dtype,model,mode,batch_size,median,lower,upper,memory_mb,gflops,of_peak"
OPERATOR_COLUMNS = "date,machine,case,dtype,operator,direction,tokens,median_ms,lower_ms,upper_ms,memory_mb"
RUNTIME_COLUMNS = "date,machine,case,model,runtime,median,lower,upper"
LARGE_COLUMNS = "date,machine,model,megapixels,height,width,seconds,gigabytes,reason"

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
    "packed linear softmax --images 3 --tokens 2 9 --shape 2 4 --rounds 3": ("| pass | N | operator |", "", 0),
    "deploy soft_pico --img-size 32 --rounds 3 --runtimes eager onnx": ("| soft_pico | onnx |", RUNTIME_COLUMNS, 2),
    DATA: ("| 0 | timm |", "", 0),
    "large soft_pico --megapixels 0.01": ("| soft_pico |", LARGE_COLUMNS, 1),
}


def measure_here(command: list[str], **options: object) -> SimpleNamespace:
    """The process of one pass, in this one: it would import for seconds what is imported here."""
    name, height, width, _ = command[command.index("benchmarks.large") + 1 :]
    return SimpleNamespace(returncode=0, stdout=json.dumps(large.measure_pass(name, int(height), int(width))))


# A command, and whether each process that it starts is one.
RUN = [*(pytest.param(command, False, id=command.split()[0]) for command in COMMANDS)]
RUN += [pytest.param([*COMMANDS][-1], True, id="large in processes", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("command", "in_processes"), RUN)
def test_command(command, in_processes, tmp_path, capsys, monkeypatch):
    if not in_processes:
        monkeypatch.setattr(large, "subprocess", SimpleNamespace(run=measure_here, PIPE=None))
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
