"""The report of a GPU: its parts in this process, how processes end, and what the page says of given figures."""

import fcntl
import json
import time
from dataclasses import replace

import pytest
import torch

from benchmarks import operator
from benchmarks.gpu import parts as of_parts
from benchmarks.gpu.page import aims_table, models_table, operator_table, page
from benchmarks.gpu.parts import DRY, FORMS, FULL, Figure, Part, compulsory_bytes, measure, plan
from benchmarks.gpu.run import DONE, FAILED, OUT_OF_TIME, Outcome, load_outcomes, run_parts


@pytest.fixture
def eager_as_fused(monkeypatch):
    """Without the interpreter, and with little to copy."""
    monkeypatch.setattr(operator, "COPIED_BYTES", 1 << 20)
    monkeypatch.setitem(FORMS, "soft fused", FORMS["soft eager"])


@pytest.mark.parametrize("part", [part.name for part in plan(dry=True) if not part.of_tests])
@pytest.mark.usefixtures("eager_as_fused")
def test_parts_of_the_dry_run(part):
    figures = measure(part, DRY)
    assert all(figure.median > 0 for figure in figures)
    if part == "models":
        assert [(f.form, f.direction) for f in figures] == [
            (name, mode) for mode in ("inference", "training") for name in DRY.models
        ]
    else:
        assert [(f.what, f.form, f.direction) for f in figures] == [("copy", "copy", "")] + [
            ("operator", form, direction) for direction in ("forward", "forward+backward") for form in FORMS
        ]
        assert all(f.of_floor > 0 for f in figures[1:])


def test_every_part_can_be_measured(monkeypatch):
    """Each name reaches its function, with models and lengths of the plan."""
    reached = []
    monkeypatch.setattr(of_parts, "batch_of", lambda sizes: 256)
    for name in ("measure_operator", "measure_graph", "measure_models", "try_steps"):
        monkeypatch.setattr(of_parts, name, lambda what, *others, name=name: reached.append((name, what)) or [])
    for part in plan(dry=False):
        if not part.of_tests:
            measure(part.name, FULL)
    lengths = [3136, 32768, 12544, 8192, 1024]
    assert reached == [
        *(("measure_operator", n) for n in lengths),
        *(("try_steps", name) for name in ("soft_tiny", "soft_tiny+channels_last")),
        *(("measure_graph", n) for n in lengths),
        ("measure_models", FULL.models),
        *(("measure_models", (name,)) for name in FULL.compiled),
    ]


def test_all_forms_of_soft_are_one_function():
    q, bottleneck, k, v = (2 * torch.randn(1, 2, n, 16) for n in (40, 5, 40, 40))
    torch.testing.assert_close(FORMS["soft eager"](q, bottleneck, k, v), FORMS["soft naive"](q, bottleneck, k, v))
    assert all(form(q, bottleneck, k, v).shape == v.shape for name, form in FORMS.items() if name != "soft fused")


@pytest.mark.parametrize(
    ("form", "direction", "tensors"),
    [
        ("soft fused", "forward", "q v x"),
        ("soft fused", "forward+backward", "q v x dx q v dx dq dv"),
        ("softmax", "forward", "q k v x"),
        ("linear", "forward+backward", "q k v x dx q k v dx dq dk dv"),
    ],
)
def test_compulsory_bytes(form, direction, tensors):
    v = torch.empty(2, 3, 5, 7, dtype=torch.bfloat16)
    assert compulsory_bytes(form, direction, v) == len(tensors.split()) * 2 * 3 * 5 * 7 * 2


def script(name: str, code: str, seconds: int = 60, together: bool = False) -> Part:
    return Part(name, ("-c", code), seconds, together)


FIGURE = Figure("operator", "softmax", "forward", 8, "bfloat16", "ms", 1.0, 0.9, 1.1, 2.0, 0.5)
WRITES = "import json, sys; json.dump([dict({}, size=int(sys.argv[2]))], open(sys.argv[1], 'w'))"


def run(out, *parts, machine="a machine", seconds=60.0):
    reports = []
    out.mkdir(exist_ok=True)
    folder = dict(root=out, seconds=seconds, options=["17"], environment={"WORD": "here"})
    outcomes = run_parts(parts, out, machine, lambda found: reports.append(list(found)), **folder)
    assert not reports or reports[-1] == list(outcomes)
    return outcomes


def test_one_failing_part_does_not_end_the_others(tmp_path):
    parts = [
        script("tests: some", "import os; print('3 passed'); print(os.environ['WORD'])", together=True),
        script("fails", "print('before'); raise RuntimeError('the reason')"),
        script("hangs", "import time; print('asleep', flush=True); time.sleep(600)", seconds=1),
        script("measures", WRITES.format(dict(FIGURE.__dict__))),
    ]
    outcomes = run(tmp_path / "out", *parts)
    assert [(name, outcome.state) for name, outcome in outcomes.items()] == [
        ("tests: some", DONE),
        ("fails", FAILED),
        ("hangs", OUT_OF_TIME),
        ("measures", DONE),
    ]
    assert outcomes["tests: some"].last == "here"
    assert outcomes["fails"].tail.splitlines()[0] == "before"
    assert outcomes["fails"].last == "RuntimeError: the reason"
    assert outcomes["hangs"].tail == "asleep"
    assert outcomes["measures"].figures == [replace(FIGURE, size=17)]
    assert "the reason" in (tmp_path / "out" / "log.txt").read_text()
    assert load_outcomes(tmp_path / "out", "a machine") == outcomes
    text = page("head", "command", parts, outcomes, FULL)
    assert "| fails | failed |" in text
    assert "RuntimeError: the reason\n~~~" in text
    assert "| tests: some | done |" in text


def test_what_a_part_started_ends_with_it(tmp_path):
    lock = tmp_path / "lock"
    code = (
        f"import fcntl, subprocess; file = open({str(lock)!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "subprocess.Popen(['sleep', '60'], pass_fds=[file.fileno()])"
    )
    assert run(tmp_path / "out", script("leaves", code))["leaves"].state == DONE
    # The child holds the lock as long as it lives.
    deadline = time.monotonic() + 30
    with lock.open() as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < deadline, "the child lives on"
                time.sleep(0.05)
            else:
                break


def test_goes_on_where_it_ended(tmp_path):
    out, flag = tmp_path / "out", tmp_path / "flag"
    once = script("once", f"import pathlib; path = pathlib.Path({str(flag)!r}); path.touch(exist_ok=False)")
    second = script("second", f"import pathlib; assert pathlib.Path({str(out / 'go')!r}).exists()")
    late = script("late", "")
    assert [outcome.state for outcome in run(out, once, second).values()] == [DONE, FAILED]
    # No time is left, and a part that has not begun has no outcome.
    assert list(run(out, once, second, late, seconds=0.0)) == ["once", "second"]
    (out / "go").touch()
    assert [outcome.state for outcome in run(out, once, second, late).values()] == [DONE, DONE, DONE]
    with pytest.raises(ValueError, match=r"holds the report of a machine, not of another; give another folder"):
        run(out, once, machine="another")


PLANNED = (1024, 3136, 8192)


def operator_figures(fused: float, floor: float, softmax: float = 9.0, lengths=PLANNED) -> list[Figure]:
    """Eager takes 16 ms, at every length and in both passes."""
    return [
        Figure("operator", form, direction, n, "bfloat16", "ms", ms, ms, ms, 5.0, floor)
        for n in lengths
        for direction in ("forward", "forward+backward")
        for form, ms in (("soft fused", fused), ("soft eager", 16.0), ("softmax", softmax))
    ]


def without_memory(figures: list[Figure], form: str, size: int) -> list[Figure]:
    return [replace(f, median=None, of_floor=None) if (f.form, f.size) == (form, size) else f for f in figures]


@pytest.mark.parametrize(
    ("figures", "verdicts"),
    [
        (operator_figures(2.0, 0.6), ["reached"] * 4),
        (operator_figures(2.0, 0.6, lengths=(3136,)), ["reached where measured"] * 4),
        (operator_figures(2.1, 0.6, lengths=(3136,)), ["missed", *["reached where measured"] * 3]),
        (
            without_memory(operator_figures(2.0, 0.6), "soft eager", 8192),
            ["reached where measured", *["reached"] * 3],
        ),
        (without_memory(operator_figures(2.0, 0.6), "soft fused", 8192), ["reached where measured"] * 4),
        (operator_figures(2.1, 0.59), ["missed", "missed", "missed", "reached"]),
        (operator_figures(10.0, 0.7), ["missed", "reached", "reached", "missed"]),
        # What is shorter does not count.
        (operator_figures(2.0, 0.6) + operator_figures(20.0, 0.1, lengths=(1024,)), ["reached"] * 4),
        (operator_figures(2.0, 0.6, lengths=(1024,)), ["not measured"] * 4),
        ([], ["not measured"] * 4),
    ],
)
def test_aims(figures, verdicts):
    _, _, *rows = aims_table(figures, PLANNED).splitlines()
    assert [row.split(" | ")[1] for row in rows] == verdicts


def test_numbers_beside_the_aims():
    _, _, *rows = aims_table(operator_figures(2.0, 0.6, lengths=(1024, 3136)), PLANNED).splitlines()
    assert [row.split(" | ")[2] for row in rows] == [
        "3136: 8 times; 8192: not measured |",
        "3136: 60 %; 8192: not measured |",
        "3136: 60 %; 8192: not measured |",
        "3136: 4.5 times; 8192: not measured |",
    ]


def test_a_form_without_memory_in_the_tables():
    figures = operator_figures(2.0, 0.6, lengths=(3136,))
    short = without_memory(figures, "softmax", 3136)
    rows = operator_table(short).splitlines()
    assert {row.count("|") for row in rows} == {10}
    assert "| 3136 | forward | softmax | out of memory |" in rows[4]
    assert "| 3136 | forward | soft fused | 2 | 2 - 2 | 8.00 |  | 60 | 5 |" in rows
    assert "not measured" in aims_table(short, (3136,)).splitlines()[-1]
    model = Figure("model", "soft_tiny", "training", 8, "bfloat16", "images/s", None, None, None)
    assert models_table([model]).splitlines()[2] == "| training | soft_tiny | 8 | out of memory |  |  |"


def test_figures_survive_json():
    assert Outcome(DONE, 1.0, figures=[FIGURE]) != Outcome(DONE, 1.0)
    assert Figure(**json.loads(json.dumps(FIGURE.__dict__))) == FIGURE
