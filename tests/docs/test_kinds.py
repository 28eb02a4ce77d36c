import re

import pytest

from soft_vit.layers import ATTENTIONS


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_each_kind_begins_with_its_formula(kind):
    """In its own docstring, not in an inherited one."""
    assert re.match(r"`[^`]+`", ATTENTIONS[kind].__dict__["__doc__"])
