"""The gym's tasks: solvers that see what a model sees find the same answers; ceilings of single tokens."""

from collections import Counter, defaultdict, deque

import numpy as np
import pytest

from studies.gym import NOT_ASKED, TASKS, Batch, Task
from studies.gym.symbols import ListOps


def recall(task, tokens):
    values = {}
    key, value = tokens[:, : task.num_keys], tokens[:, task.num_keys :]
    for i in range(len(tokens)):
        if value[i].any():
            values[key[i].tobytes()] = value[i].argmax()
    return [values[key[i].tobytes()] if key[i].any() and not value[i].any() else NOT_ASKED for i in range(len(tokens))]


def far_pair(task, tokens):
    cells = tokens.reshape(len(tokens), task.PATCH, task.PATCH)
    left, right = np.flatnonzero([cell[0].all() and cell[:, -1].all() for cell in cells])
    width = task.feat_size[1]
    if left % width:
        left, right = right, left
    assert (left % width, right % width) == (0, width - 1)
    answers = np.full(len(tokens), NOT_ASKED)
    for framed, column in ((right, slice(0, None, width)), (left, slice(width - 1, None, width))):
        drawings = cells[column, 1:-1, 1:-1]
        answers[column] = (drawings == cells[framed, 1:-1, 1:-1]).all((1, 2))
    return answers


def mirror(task, tokens):
    side = task.feat_size[1]
    return [(tokens[y * side + x] == tokens[y * side + side - 1 - x]).all() for y, x in np.ndindex(task.feat_size)]


def rank(task, tokens):
    return [4 * sum(other < token for other in tokens[:, 0]) // len(tokens) for token in tokens[:, 0]]


def maze(task, tokens):
    free = {(int(y), int(x)) for y, x in np.argwhere(tokens[:, 1].reshape(task.feat_size))}
    start = tuple(map(int, np.argwhere(tokens[:, 2].reshape(task.feat_size))[0]))
    reached, todo = {start}, deque([start])
    while todo:
        y, x = todo.popleft()
        near = ({(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)} & free) - reached
        reached |= near
        todo.extend(near)
    return [place in reached for place in np.ndindex(task.feat_size)]


def listops(task, tokens):
    """Evaluate lists by a stack of open lists, each with the position where it opens."""
    stack, answers = [], np.full(len(tokens), NOT_ASKED)
    for i, token in enumerate(tokens[tokens.any(1)]):
        word = ListOps.SYMBOLS[token.argmax()]
        if word.startswith("["):
            stack.append((i, word, []))
            continue
        value = word
        if word == "]":
            opened, name, values = stack.pop()
            values.sort()
            by_name = {"[max": values[-1], "[min": values[0], "[sm": sum(values) % 10}
            value = answers[opened] = by_name.get(name, values[len(values) // 2])
        if stack:
            stack[-1][2].append(int(value))
    assert not stack
    return answers


SOLVERS = {solver.__name__: solver for solver in (recall, far_pair, mirror, rank, maze, listops)}

# The smallest and a larger number of tokens, and both ends of the difficulty.
OPTIONS = {
    "recall": [(4, 1), (49, 24)],
    "far_pair": [(9, 2), (121, 64)],
    "mirror": [(4, 2), (100, 9)],
    "rank": [(9, 0.1), (64, 8.0)],
    "maze": [(16, 0.6), (25, 0.2), (225,)],
    "listops": [(8, 1), (9, 5), (), (512, 6)],
}
CASES = [(name, options) for name, cases in OPTIONS.items() for options in cases]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_solver_finds_the_answers(name, options):
    task = TASKS[name](*options)
    batch = task.sample(np.random.default_rng(7), 24)
    inputs, labels = batch
    assert inputs.shape == (24, task.num_tokens, task.num_features)
    assert labels.shape == (24, task.num_tokens)
    assert (inputs.dtype, labels.dtype) == (np.float32, np.int64)
    assert labels.max() < task.num_classes
    for tokens, label in zip(inputs, labels, strict=True):
        asked = label != NOT_ASKED
        assert asked.any()
        answers = np.array(SOLVERS[name](task, tokens), int)
        np.testing.assert_array_equal(answers[asked], label[asked])
        if name in ("recall", "far_pair", "listops"):
            assert (asked == (answers != NOT_ASKED)).all(), "all that could be asked is asked"
        if name == "maze":
            assert label[asked].mean() == 0.5
    again = TASKS[name](*options).sample(np.random.default_rng(7), 24)
    assert all(np.array_equal(*pair) for pair in zip(batch, again, strict=True))
    other = task.sample(np.random.default_rng(8), 24)
    assert not np.array_equal(inputs, other.inputs)


def accuracy_by_table(task: Task, batch: Batch, hint) -> tuple[float, float]:
    """Return accuracy and standard error of the likeliest answer to each hint, learned from half of the questions."""
    examples, places = np.nonzero(batch.labels != NOT_ASKED)
    hints = [hint(batch.inputs[i, j], j) for i, j in zip(examples, places, strict=True)]
    answers, half = batch.labels[examples, places].tolist(), len(hints) // 2
    seen = defaultdict(Counter)
    for key, answer in zip(hints[:half], answers[:half], strict=True):
        seen[key][answer] += 1
    right = [
        seen[key].most_common(1)[0][0] == answer
        for key, answer in zip(hints[half:], answers[half:], strict=True)
        if key in seen
    ]
    return np.mean(right), 0.5 / len(right) ** 0.5


@pytest.mark.parametrize(
    ("name", "options", "hint", "is_reached"),
    [
        # Neither its features nor its position tell a token the answer, except in mazes.
        ("recall", dict(num_tokens=9, difficulty=2), lambda token, place: (token.tobytes(), place), False),
        ("far_pair", dict(num_tokens=9, difficulty=2), lambda token, place: (token.tobytes(), place), False),
        ("mirror", dict(num_tokens=16, difficulty=3), lambda token, place: (token.tobytes(), place), False),
        ("maze", dict(num_tokens=25), lambda token, place: place, True),
    ],
)
def test_ceiling_is_what_a_table_reaches(name, options, hint, is_reached):
    task = TASKS[name](**options)
    accuracy, error = accuracy_by_table(task, task.sample(np.random.default_rng(5), 1000), hint)
    ceiling = task.ceiling()
    assert accuracy < ceiling + 6 * error
    assert not is_reached or accuracy > ceiling - 6 * error
