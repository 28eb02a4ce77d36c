"""The report of a GPU: its parts in this process, how processes end, and what the page says of given timings."""

import fcntl
import json
import time
from dataclasses import asdict, replace

import pytest

from benchmarks.gpu import parts as of_parts
from benchmarks.gpu.outcome import DONE, FAILED, OUT_OF_TIME, Outcome, load_outcomes
from benchmarks.gpu.page import aims_table, compulsory_bytes, csv_rows, operator_calls, operator_table, page
from benchmarks.gpu.parts import DRY, EAGER, FORMS, FULL, FUSED, SOFTMAX, Part, measure_part, plan
from benchmarks.gpu.run import Runner, run_parts
from benchmarks.registry import OPERATORS
from benchmarks.timer import Timing


@pytest.fixture
def eager_as_fused(monkeypatch):
    """Without the interpreter, and with little to copy."""
    monkeypatch.setattr("benchmarks.operator.COPIED_BYTES", 1 << 20)
    monkeypatch.setitem(OPERATORS, FUSED, OPERATORS[EAGER])


@pytest.mark.parametrize("part", [part.name for part in plan(dry=True) if not part.of_tests])
@pytest.mark.usefixtures("eager_as_fused")
def test_parts_of_the_dry_run(part):
    timings = measure_part(part, DRY)
    assert all(timing.time.median > 0 for timing in timings)
    found = [(timing.target, timing.mode) for timing in timings]
    if part == "models":
        assert found == [(name, mode) for mode in ("inference", "training") for name in DRY.models]
    else:
        passes = ("forward", "forward+backward")
        assert found == [("copy", ""), *((form, direction) for direction in passes for form in FORMS)]


def test_every_part_can_be_measured(monkeypatch):
    """Each name reaches its function, with models and lengths of the plan."""
    reached = []
    monkeypatch.setattr(of_parts, "batch_of", lambda sizes: 256)
    monkeypatch.setattr(of_parts, "copy_timing", lambda *args: None)
    monkeypatch.setattr(of_parts, "measure_operators", lambda names, tokens, **_: reached.append(tokens) or [])
    for name in ("time_graph", "time_models", "try_steps"):
        monkeypatch.setattr(of_parts, name, lambda what, *others, name=name: reached.append((name, what)) or [])
    for part in plan(dry=False):
        if not part.of_tests:
            measure_part(part.name, FULL)
    lengths = [3136, 32768, 12544, 8192, 1024]
    assert reached == [
        *([n] for n in lengths),
        *(("try_steps", name) for name in ("soft_tiny", "soft_tiny+channels_last")),
        *(("time_graph", n) for n in lengths),
        ("time_models", FULL.models),
        *(("time_models", (name,)) for name in FULL.compiled),
    ]


@pytest.mark.parametrize(
    ("form", "direction", "tensors"),
    [
        (FUSED, "forward", "q v x"),
        (FUSED, "forward+backward", "q v x dx q v dx dq dv"),
        (SOFTMAX, "forward", "q k v x"),
        ("linear", "forward+backward", "q k v x dx q k v dx dq dk dv"),
    ],
)
def test_compulsory_bytes(form, direction, tensors):
    assert compulsory_bytes(form, direction, 7) == len(tensors.split()) * 7


def script(name: str, code: str, seconds: int = 60, together: bool = False) -> Part:
    return Part(name, ("-c", code), seconds, together)


TIMING = Timing(SOFTMAX, "forward", 8, [1.0, 2.0, 3.0], 2**20, 5)
WRITES = "import json, sys; json.dump([dict({}, size=int(sys.argv[2]))], open(sys.argv[1], 'w'))"


def run(out, *parts, machine="a machine", seconds=60.0):
    reports = []
    out.mkdir(exist_ok=True)
    runner = Runner(out, seconds, options=["17"], environment={"WORD": "here"})
    outcomes = run_parts(parts, out, machine, lambda found: reports.append(list(found)), runner)
    assert not reports or reports[-1] == list(outcomes)
    return outcomes


def test_one_failing_part_does_not_end_the_others(tmp_path):
    parts = [
        script("tests: some", "import os; print('3 passed'); print(os.environ['WORD'])", together=True),
        script("fails", "print('before'); raise RuntimeError('the reason')"),
        script("hangs", "import time; print('asleep', flush=True); time.sleep(600)", seconds=1),
        script("measures", WRITES.format(asdict(TIMING))),
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
    assert outcomes["measures"].timings == [replace(TIMING, size=17)]
    assert "the reason" in (tmp_path / "out" / "log.txt").read_text()
    assert load_outcomes(tmp_path / "out", "a machine") == outcomes
    outcomes["measures"].timings.append(Timing("copy", "", 10**9, [1.0] * 3))
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
    with pytest.raises(ValueError, match=r"another.* a machine"):
        run(out, once, machine="another")


PLANNED = (1024, 3136, 8192)


def outcomes_of(fused: float, floor: float, softmax: float = 9.0, lengths=PLANNED) -> list[Outcome]:
    """Eager takes 16 s, at every length and in both passes; floor: that of the fused form, as a part of its time."""
    found = []
    for n in lengths:
        for direction in ("forward", "forward+backward"):
            tensor = 2 * 8 * 16 * 64 * n
            speed = int(compulsory_bytes(FUSED, direction, tensor) / (floor * fused) / 2)
            forms = ((FUSED, fused), (EAGER, 16.0), (SOFTMAX, softmax))
            timings = [Timing(form, direction, n, [seconds] * 3, 5 * 2**20) for form, seconds in forms]
            found.append(Outcome(DONE, 1.0, timings=[Timing("copy", "", speed, [1.0] * 3), *timings]))
    return found


def without_memory(outcomes: list[Outcome], form: str, size: int) -> list[Outcome]:
    for outcome in outcomes:
        outcome.timings = [replace(t, seconds=[]) if (t.target, t.size) == (form, size) else t for t in outcome.timings]
    return outcomes


@pytest.mark.parametrize(
    ("outcomes", "verdicts"),
    [
        (outcomes_of(2.0, 0.61), ["reached"] * 4),
        (outcomes_of(2.0, 0.61, lengths=(3136,)), ["reached where measured"] * 4),
        (outcomes_of(2.1, 0.61, lengths=(3136,)), ["missed", *["reached where measured"] * 3]),
        (without_memory(outcomes_of(2.0, 0.61), EAGER, 8192), ["reached where measured", *["reached"] * 3]),
        (without_memory(outcomes_of(2.0, 0.61), FUSED, 8192), ["reached where measured"] * 4),
        (outcomes_of(2.1, 0.59), ["missed", "missed", "missed", "reached"]),
        (outcomes_of(10.0, 0.7), ["missed", "reached", "reached", "missed"]),
        # What is shorter does not count.
        (outcomes_of(2.0, 0.61) + outcomes_of(20.0, 0.1, lengths=(1024,)), ["reached"] * 4),
        (outcomes_of(2.0, 0.61, lengths=(1024,)), ["not measured"] * 4),
        ([], ["not measured"] * 4),
    ],
)
def test_aims(outcomes, verdicts):
    _, _, *rows = aims_table(operator_calls(outcomes, FULL), PLANNED).splitlines()
    assert [row.split(" | ")[1] for row in rows] == verdicts


def test_tables():
    outcomes = without_memory(outcomes_of(2.0, 0.601, lengths=(1024, 3136)), SOFTMAX, 3136)
    calls = operator_calls(outcomes, FULL)
    _, _, *rows = aims_table(calls, PLANNED).splitlines()
    assert [row.split(" | ")[2] for row in rows] == [
        "3136: 8 times; 8192: not measured |",
        "3136: 60.1 %; 8192: not measured |",
        "3136: 60.1 %; 8192: not measured |",
        "3136: not measured; 8192: not measured |",
    ]
    timings = [timing for outcome in outcomes for timing in outcome.timings]
    rows = operator_table(timings, calls).splitlines()
    assert {row.count("|") for row in rows} == {10}
    assert "| 3136 | forward | softmax | out of memory |  |  |  |  |  |" in rows
    assert "| 3136 | forward | newton-triton | 2e+03 | 2e+03 - 2e+03 | 8.00 |  | 60 | 5 |" in rows
    written = csv_rows(timings, calls)
    assert len(written) == len(timings)
    assert written[1]["of_floor"] == pytest.approx(0.601)


def test_timings_survive_json():
    assert Timing(**json.loads(json.dumps(asdict(TIMING)))) == TIMING
