"""Stopping: tokens that reach down a tree and wake what is blocked; deadlines on one thread."""

import threading

import pytest

from gligabao.cancel import Cancel, Watchdog
from gligabao.errors import Cancelled


def test_a_stop_reaches_the_children_with_their_own_reason():
    root = Cancel()
    child = root.child(lambda reason: f"the parent: {reason}")
    grandchild = child.child(str)
    root.set("by the user")
    assert root.reason == "by the user"
    assert child.reason == grandchild.reason == "the parent: by the user"


def test_a_child_does_not_stop_its_parent():
    root = Cancel()
    root.child(str).set("by the user")
    assert not root.is_set()


def test_a_child_made_after_the_stop_is_stopped():
    root = Cancel()
    root.set("by the user")
    assert root.child(str.upper).reason == "BY THE USER"


def test_a_forgotten_child_is_left_alone():
    root = Cancel()
    child = root.child(str)
    root.forget(child)
    root.set("by the user")
    assert not child.is_set()


def test_the_first_reason_stays():
    cancel = Cancel()
    cancel.set("first")
    cancel.set("second")
    with pytest.raises(Cancelled, match="first"):
        cancel.check()


def test_a_wait_ends_with_the_stop():
    cancel = Cancel()
    raised = threading.Event()

    def wait():
        with pytest.raises(Cancelled):
            cancel.wait(60)
        raised.set()

    thread = threading.Thread(target=wait)
    thread.start()
    cancel.set("stop")
    assert raised.wait(10)
    thread.join(10)


def test_a_stop_calls_the_wakers_of_open_blocks_only():
    cancel = Cancel()
    woken = []
    with cancel.waking(lambda: woken.append("closed block")):
        pass
    with cancel.waking(lambda: woken.append("open block")):
        cancel.set("stop")
    assert woken == ["open block"]


def test_a_block_is_not_entered_after_the_stop():
    cancel = Cancel()
    cancel.set("stop")
    with pytest.raises(Cancelled), cancel.waking(lambda: None):
        pytest.fail("the block ran")


def test_a_waker_that_fails_does_not_keep_the_others_from_being_called():
    cancel = Cancel()
    woken = []

    def fail():
        raise OSError("closed already")

    with cancel.waking(fail), cancel.waking(lambda: woken.append(True)):
        cancel.set("stop")
    assert woken == [True]


def test_a_deadline_that_passes_calls_its_function(watchdog):
    fired = threading.Event()
    with watchdog.deadline(0.01, fired.set):
        assert fired.wait(10)


def test_a_deadline_that_is_met_does_not_fire(watchdog):
    early, late = threading.Event(), threading.Event()
    with watchdog.deadline(0.05, early.set):
        pass
    with watchdog.deadline(0.1, late.set):
        assert late.wait(10)
    assert not early.is_set()


def test_a_shorter_deadline_set_later_fires_first(watchdog):
    long, short = threading.Event(), threading.Event()
    with watchdog.deadline(60, long.set), watchdog.deadline(0.01, short.set):
        assert short.wait(10)
    assert not long.is_set()


def test_met_deadlines_are_forgotten(watchdog):
    for _ in range(1000):
        with watchdog.deadline(3600, lambda: None):
            pass
    assert len(watchdog._due) < 200


def test_closing_ends_the_thread():
    watchdog = Watchdog()
    with watchdog.deadline(60, lambda: None):
        pass
    watchdog.close()
    assert not any(thread.name == "watchdog" and thread.is_alive() for thread in threading.enumerate())
