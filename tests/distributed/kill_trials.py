"""Kill a training run at random places, resume it, and compare what it ends with, bit for bit.

python tests/distributed/kill_trials.py --trials 20
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).parents[1]))

from distributed.preparations import Strike
from distributed.processes import final_state, train
from engine.runs import differences

STEPS = 15
PLACES = ("before", "after", "writing", "renamed")


def trial(folder: Path, expected: dict, draw: random.Random) -> tuple[str, list[str]]:
    """Run to the end through one to three kills. Returns what happened, and what is wrong with the end."""
    # A later start loads data otherwise, which must not matter.
    events, step = [], 0
    for _ in range(draw.choice((1, 1, 2, 3))):
        step = draw.randint(step + 1, STEPS)
        strike, workers = Strike(step, draw.choice(PLACES)), draw.choice((0, 2))
        code = train(folder, "--resume", options=loading(workers), preparation=strike.install)
        events.append(f"{strike.place} {step}, {workers} workers")
        if code != -strike.number:
            return "; ".join(events), [f"exit code {code}"]
        if step == STEPS:
            break
    code = train(folder, "--resume", options=loading(draw.choice((0, 2))))
    wrong = differences(final_state(folder), expected) if code == 0 else [f"exit code {code}"]
    return "; ".join(events), wrong + [f"{path.name} stays" for path in folder.glob(".*.tmp")]


def loading(workers: int) -> list[str]:
    return [f"train_dataloader.num_workers={workers}", f"train_dataloader.persistent_workers={workers > 0}"]


def trials(folder: Path, expected: dict, count: int, seed: int) -> Iterator[tuple[str, list[str]]]:
    for number in range(count):
        yield trial(folder / str(number), expected, random.Random(f"{seed} {number}"))


def main() -> int:
    from tqdm import tqdm

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the places where runs are killed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        straight = Path(folder) / "straight"
        if train(straight):
            print((straight / "output").read_text()[-3000:])
            return 1
        expected = final_state(straight)
        good = 0
        for events, wrong in tqdm(trials(Path(folder), expected, args.trials, args.seed), total=args.trials):
            tqdm.write(f"killed {events}: {'equal' if not wrong else ', '.join(wrong[:5])}")
            good += not wrong
    print(f"{good} of {args.trials} runs resumed every time and ended bit for bit as the uninterrupted one.")
    return int(good < args.trials)


if __name__ == "__main__":
    sys.exit(main())
