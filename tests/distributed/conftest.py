"""The run that others are compared with."""

import pytest
from distributed.processes import final_state, train


@pytest.fixture(scope="session")
def straight(tmp_path_factory) -> dict:
    """What the long run ends with when nothing happens to it."""
    folder = tmp_path_factory.mktemp("straight")
    assert train(folder) == 0, (folder / "output").read_text()[-3000:]
    return final_state(folder)
