"""A small framework and its recipe, for whole modules of tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.framework import toy_framework


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Iterator[Path]:
    """The folder of the framework `toy`, whose recipe is registered."""
    with toy_framework(tmp_path_factory.mktemp("toy")) as folder:
        yield folder
