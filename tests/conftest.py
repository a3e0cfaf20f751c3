"""Fixtures for several folders."""

from collections.abc import Iterator

import pytest

from tests.helpers import kept_workers


@pytest.fixture(scope="module")
def kept_planners() -> Iterator[None]:
    """Planning processes are those of the tests before, where these have left one."""
    with kept_workers.kept_workers():
        yield
