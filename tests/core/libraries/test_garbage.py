"""Garbage is not collected in a block, whatever other threads do."""

import gc
from threading import Event, Thread

from membench.core.libraries.garbage import without_collection


def test_a_block_that_ends_in_another_thread_leaves_collection_off() -> None:
    begun, ends = Event(), Event()

    def other() -> None:
        with without_collection():
            begun.set()
            ends.wait(10)

    thread = Thread(target=other)
    thread.start()
    assert begun.wait(10)
    with without_collection():
        ends.set()
        thread.join()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with without_collection(), without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
