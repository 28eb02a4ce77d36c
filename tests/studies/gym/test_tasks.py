"""The gym's tasks: solvers that see what a model sees find the same answers; ceilings of single tokens."""

from collections import deque

import numpy as np
import pytest

from studies.gym import NOT_ASKED, TASKS
from studies.gym.symbols import ListOps


def recall(task, tokens):
    values = {}
    key, value = tokens[:, : task.num_keys], tokens[:, task.num_keys :]
    for i in range(len(tokens)):
        if value[i].any():
            values[key[i].tobytes()] = value[i].argmax()
    return [values[key[i].tobytes()] if key[i].any() and not value[i].any() else NOT_ASKED for i in range(len(tokens))]


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


SOLVERS = {solver.__name__: solver for solver in (recall, mirror, rank, maze, listops)}

# The smallest and a larger number of tokens, and both ends of the difficulty.
OPTIONS = {
    "recall": [(4, 1), (49, 24)],
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
        if name in ("recall", "listops"):
            assert (asked == (answers != NOT_ASKED)).all(), "all that could be asked is asked"
        if name == "maze":
            assert label[asked].mean() == 0.5
    again = TASKS[name](*options).sample(np.random.default_rng(7), 24)
    assert all(np.array_equal(*pair) for pair in zip(batch, again, strict=True))
    assert not np.array_equal(inputs, task.sample(np.random.default_rng(8), 24).inputs)
