"""The order of a stop, and the streams and waits that come first in it."""

import threading
from contextlib import ExitStack

import pytest

from gligabao.errors import Stopping, TooMany
from gligabao.stopping import StopOrder
from gligabao.web.long_answers import LongAnswers


class Part:
    def __init__(self, name, told, *, is_stuck=False):
        self.name = name
        self.told = told
        self.is_stuck = is_stuck

    def begin_stop(self):
        self.told.append(f"stop {self.name}")

    def join(self, seconds):
        self.told.append(f"join {self.name}")
        if self.is_stuck:
            threading.Event().wait(seconds)
        return not self.is_stuck


def test_all_are_told_in_order_and_then_waited_for_in_order():
    told = []
    order = StopOrder(Part("streams", told), Part("agents", told))
    assert order.seconds == 0
    order.begin()
    order.begin()
    assert told == ["stop streams", "stop agents"] and order.seconds > 0
    assert order.join(10)
    assert told[2:] == ["join streams", "join agents"]


def test_one_that_does_not_end_takes_the_time_of_all_but_the_others_are_asked():
    told = []
    order = StopOrder(Part("streams", told, is_stuck=True), Part("agents", told))
    assert not order.join(0.2)
    assert told.count("join streams") > 1 and told[-1] == "join agents"


def test_a_hurry_ends_the_wait():
    hurry, told = threading.Event(), []
    order = StopOrder(Part("agents", told, is_stuck=True))
    stopper = threading.Thread(target=order.join, args=(600, hurry))
    stopper.start()
    hurry.set()
    stopper.join(30)
    assert not stopper.is_alive()


def test_the_limits_follow_from_the_threads():
    assert [(one.max_streams, one.max_waits) for one in map(lambda n: LongAnswers(threads=n), (16, 57, 256))] == [
        (1, 4),
        (1, 14),
        (200, 64),
    ]


def test_a_user_has_ten_streams_at_most():
    long_answers = LongAnswers(threads=256)
    with ExitStack() as streams:
        for _ in range(10):
            streams.enter_context(long_answers.stream("u1"))
        with pytest.raises(TooMany, match='user "u1" already has 10 streams open') as refused:
            streams.enter_context(long_answers.stream("u1"))
        assert refused.value.status == 429 and refused.value.retry_after_seconds
        streams.enter_context(long_answers.stream("u2"))
        streams.enter_context(long_answers.wait())
    with long_answers.stream("u1"):
        pass


def test_waits_and_streams_are_counted_apart():
    long_answers = LongAnswers(threads=16)
    with ExitStack() as held:
        held.enter_context(long_answers.stream("u1"))
        for _ in range(4):
            held.enter_context(long_answers.wait())
        with pytest.raises(TooMany, match="4 requests wait for results"):
            held.enter_context(long_answers.wait())
        with pytest.raises(TooMany, match="1 streams are open"):
            held.enter_context(long_answers.stream("u2"))


def test_news_wakes_a_wait_also_when_it_came_just_before():
    long_answers = LongAnswers(threads=16)
    with long_answers.wait() as wait:
        wait.wake()
        assert wait.wait(600)
        threading.Timer(0.05, wait.wake).start()
        assert wait.wait(600)
        assert wait.wait(0.01)


def test_a_stop_wakes_all_and_lets_none_begin():
    long_answers, woken = LongAnswers(threads=16), []

    def view():
        with long_answers.wait() as wait:
            inside.set()
            woken.append(wait.wait(600))

    inside = threading.Event()
    thread = threading.Thread(target=view)
    thread.start()
    assert inside.wait(30) and not long_answers.join(0)
    long_answers.begin_stop()
    assert long_answers.join(30) and long_answers.stopping.is_set()
    thread.join(30)
    assert woken == [False]
    with pytest.raises(Stopping, match="the server is stopping"), long_answers.stream("u1"):
        pass
