"""The fair lock: one holder at a time, in the order they asked, and no turn is ever lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gligabao.errors import StoreError
from gligabao.store.fair_lock import FairLock


def queue_up(lock, number, order, *, last=False):
    """Start a thread that waits for its turn, and return it once it does. It adds its number when its turn comes."""
    waiting = len(lock)

    def take():
        try:
            with lock.hold_last(10) if last else lock.hold(10):
                order.append(number)
        except StoreError as refusal:
            order.append(str(refusal))

    thread = threading.Thread(target=take)
    thread.start()
    while len(lock) == waiting and thread.is_alive():
        thread.join(0.001)
    return thread


def test_turns_come_in_the_order_they_were_asked_for():
    lock, order = FairLock(), []
    with lock.hold(1):
        threads = [queue_up(lock, number, order) for number in range(20)]
    for thread in threads:
        thread.join(10)
    assert order == list(range(20))


def test_only_one_has_its_turn_at_a_time():
    lock, inside, seen = FairLock(), [], set()

    def take(number):
        with lock.hold(10):
            inside.append(number)
            seen.add(len(inside))
            inside.remove(number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(take, range(500)))
    assert seen == {1}


def test_whoever_waits_too_long_is_told_and_holds_nobody_up():
    lock, order = FairLock(), []
    with ThreadPoolExecutor(1) as pool:
        with lock.hold(1):
            impatient = pool.submit(lock.hold(0.01).__enter__)
            with pytest.raises(StoreError, match="busy for"):
                impatient.result(10)
            patient = queue_up(lock, "patient", order)
        patient.join(10)
    assert order == ["patient"]


def test_a_turn_that_raises_is_given_up():
    lock = FairLock()
    with pytest.raises(ZeroDivisionError), lock.hold(1):
        raise ZeroDivisionError
    with lock.hold(0):
        pass


def test_all_who_wait_can_be_refused_while_one_has_its_turn():
    lock, order = FairLock(), []
    with lock.hold(1):
        refused = [queue_up(lock, number, order) for number in range(3)]
        lock.refuse_waiting("no more today")
        for thread in refused:
            thread.join(10)
        assert order == ["no more today"] * 3
        later = queue_up(lock, "later", order)
        assert order == ["no more today"] * 3
    later.join(10)
    assert order[3:] == ["later"]


def test_a_last_turn_is_waited_for_and_refuses_all_others():
    lock, order = FairLock(), []
    with lock.hold(1):
        refused = [queue_up(lock, number, order) for number in range(2)]
        last = queue_up(lock, "last", order, last=True)
        for thread in refused:
            thread.join(10)
        lock.refuse_waiting("not those who wait for a last turn")
        with ThreadPoolExecutor(1) as pool, pytest.raises(StoreError, match="closed"):
            pool.submit(lock.hold(10).__enter__).result(10)
        order.append("end of the turn")
    last.join(10)
    assert order == ["the database is closed"] * 2 + ["end of the turn", "last"]


def test_a_last_turn_that_did_not_come_in_time_can_be_asked_for_again():
    lock, order = FairLock(), []
    with lock.hold(1):
        with ThreadPoolExecutor(1) as pool, pytest.raises(StoreError, match="busy for"):
            pool.submit(lock.hold_last(0.01).__enter__).result(10)
        threads = [queue_up(lock, number, order, last=True) for number in range(2)]
    for thread in threads:
        thread.join(10)
    assert order == [0, 1]


def test_turns_end_well_whoever_is_refused_leaves_or_closes_at_the_same_moment():
    lock, inside, seen = FairLock(), [], set()

    def take(number):
        try:
            with lock.hold_last(10) if number > 950 else lock.hold((number % 7) * 0.0001):
                inside.append(number)
                seen.add(len(inside))
                inside.remove(number)
        except StoreError:
            return
        if number % 5 == 0:
            lock.refuse_waiting("not now")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(take, range(1000)))
    assert seen == {1} and len(lock) == 0
    with lock.hold_last(0):
        pass
