"""Stopping: tokens that reach down a tree and wake what is blocked; deadlines on one thread."""

import threading

import pytest

from gligabao.cancel import Cancel, Watchdog
from gligabao.errors import Cancelled
from gligabao.records import Stop, StopKind, StopReason
from tests.fakes import BY_USER

PARENT_ENDED = Stop(StopKind.PARENT_ENDED, "the parent ended")
INTERRUPTED = Stop(StopKind.INTERRUPTED, "the server stops")


def same(stop):
    return stop


def test_a_stop_reaches_the_children_with_a_stop_of_their_own():
    root = Cancel()
    child = root.child(lambda stop: PARENT_ENDED if stop == BY_USER else stop)
    grandchild = child.child(same)
    root.set(BY_USER)
    assert root.stop == BY_USER
    assert child.stop == grandchild.stop == PARENT_ENDED


def test_a_child_does_not_stop_its_parent():
    root = Cancel()
    root.child(same).set(BY_USER)
    assert not root.is_set()


def test_a_child_made_after_the_stop_is_stopped():
    root = Cancel()
    root.set(BY_USER)
    assert root.child(lambda stop: PARENT_ENDED).stop == PARENT_ENDED


def test_a_forgotten_child_is_left_alone():
    root = Cancel()
    child = root.child(same)
    root.forget(child)
    root.set(BY_USER)
    assert not child.is_set()


def test_the_first_stop_stays():
    cancel = Cancel()
    cancel.set(BY_USER)
    cancel.set(INTERRUPTED)
    assert cancel.stop == BY_USER


def test_whoever_is_cancelled_is_told_the_stop():
    cancel = Cancel()
    cancel.check()
    cancel.set(BY_USER)
    with pytest.raises(Cancelled, match=r"^by the user$") as raised:
        cancel.check()
    assert raised.value.stop is BY_USER


def test_every_kind_of_stop_has_a_stop_reason_whatever_its_text():
    for kind in StopKind:
        endings = [Stop(kind, text).ending() for text in ("cancelled", "interrupted", "")]
        assert {ending.stop_reason for ending in endings} == {kind.stop_reason}
        assert [ending.error for ending in endings] == ["cancelled", "interrupted", ""]
    reasons = {StopReason.CANCELLED, StopReason.INTERRUPTED, StopReason.ERROR}
    assert {kind.stop_reason for kind in StopKind} == reasons


def test_a_wait_ends_with_the_stop():
    cancel = Cancel()
    raised = threading.Event()

    def wait():
        with pytest.raises(Cancelled):
            cancel.wait(60)
        raised.set()

    thread = threading.Thread(target=wait)
    thread.start()
    cancel.set(BY_USER)
    assert raised.wait(10)
    thread.join(10)


def test_a_stop_calls_the_wakers_of_open_blocks_only():
    cancel = Cancel()
    woken = []
    with cancel.waking(lambda: woken.append("closed block")):
        pass
    with cancel.waking(lambda: woken.append("open block")):
        cancel.set(BY_USER)
    assert woken == ["open block"]


def test_a_block_is_not_entered_after_the_stop():
    cancel = Cancel()
    cancel.set(BY_USER)
    with pytest.raises(Cancelled), cancel.waking(lambda: None):
        pytest.fail("the block ran")


def test_a_waker_that_fails_does_not_keep_the_others_from_being_called():
    cancel = Cancel()
    woken = []

    def fail():
        raise OSError("closed already")

    with cancel.waking(fail), cancel.waking(lambda: woken.append(True)):
        cancel.set(BY_USER)
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
