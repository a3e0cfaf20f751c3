"""Messages of other libraries, which do not belong to the answer of a command."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def silence_libraries() -> None:
    """Leave out warnings and notes of all libraries from now on; errors are still printed."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


@contextmanager
def silent_libraries() -> Iterator[None]:
    """Leave them out for a while."""
    before = logging.root.manager.disable
    try:
        with warnings.catch_warnings():
            silence_libraries()
            yield
    finally:
        logging.disable(before)
