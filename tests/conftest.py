"""Fixtures for several folders, and what Python's garbage collector looks at."""

import atexit
import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

from tests.helpers.advice import kept_workers

# A failing example is printed as it was drawn. Hypothesis would look for a smaller one for up to five minutes, at which
# pytest's timeout ends the process, and what failed is lost. `--hypothesis-profile default` looks for it.
settings.register_profile("as_drawn", settings(), phases=[Phase.explicit, Phase.reuse, Phase.generate])
settings.load_profile("as_drawn")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without Python's garbage collector, and have it look at no object that is there afterwards.

    They are a million, of libraries and of tests, most of which live as long as the process, so that looking at them
    takes time for nothing.
    """
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries complain of what is left at the end
    gc.enable()
    # set by Lightning: torch would look for NVML at each fake tensor
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    os.environ.pop("COLUMNS", None)  # set by pytest-xdist: what is printed would be folded
    return result


@pytest.fixture(scope="session", autouse=True)
def measurements_are_short() -> Iterator[None]:
    """See `short_measurements`, imported here as it imports torch, which the process that hands out tests lacks."""
    from tests.helpers.short_measurements import short_measurements

    with short_measurements():
        yield


@pytest.fixture(scope="session", autouse=True)
def graphs_are_captured() -> Iterator[None]:
    """Tests change functions that capture, which no kept graph would notice; commands in other processes keep them."""
    from membench.capture import capture

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "kept_graph", lambda workload, asked, make: make())
        yield


@pytest.fixture(scope="module")
def kept_planners() -> Iterator[None]:
    """Planning processes are those of the tests before, where these have left one."""
    with kept_workers.kept_workers():
        yield
