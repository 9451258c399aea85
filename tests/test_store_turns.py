"""Turns: one at a time, in the order asked for, and no turn is ever lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gligabao.errors import StoreError
from gligabao.store.turns import Turns


def queue_up(turns, number, order, *, last=False):
    """Start a thread that waits for its turn, and return it once it does. It adds its number when its turn comes."""
    waiting = len(turns)

    def take():
        try:
            with turns.last_turn(10) if last else turns.turn(10):
                order.append(number)
        except StoreError as refusal:
            order.append(str(refusal))

    thread = threading.Thread(target=take)
    thread.start()
    while len(turns) == waiting and thread.is_alive():
        thread.join(0.001)
    return thread


def test_turns_come_in_the_order_they_were_asked_for():
    turns, order = Turns(), []
    with turns.turn(1):
        threads = [queue_up(turns, number, order) for number in range(20)]
    for thread in threads:
        thread.join(10)
    assert order == list(range(20))


def test_only_one_has_its_turn_at_a_time():
    turns, inside, seen = Turns(), [], set()

    def take(number):
        with turns.turn(10):
            inside.append(number)
            seen.add(len(inside))
            inside.remove(number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(take, range(500)))
    assert seen == {1}


def test_whoever_waits_too_long_is_told_and_holds_nobody_up():
    turns, order = Turns(), []
    with ThreadPoolExecutor(1) as pool:
        with turns.turn(1):
            impatient = pool.submit(turns.turn(0.01).__enter__)
            with pytest.raises(StoreError, match="busy for"):
                impatient.result(10)
            patient = queue_up(turns, "patient", order)
        patient.join(10)
    assert order == ["patient"]


def test_a_turn_that_raises_is_given_up():
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.turn(1):
        raise ZeroDivisionError
    with turns.turn(0):
        pass


def test_all_who_wait_can_be_refused_while_one_has_its_turn():
    turns, order = Turns(), []
    with turns.turn(1):
        refused = [queue_up(turns, number, order) for number in range(3)]
        turns.refuse_waiting("no more today")
        for thread in refused:
            thread.join(10)
        assert order == ["no more today"] * 3
        later = queue_up(turns, "later", order)
        assert order == ["no more today"] * 3
    later.join(10)
    assert order[3:] == ["later"]


def test_a_last_turn_is_waited_for_and_refuses_all_others():
    turns, order = Turns(), []
    with turns.turn(1):
        refused = [queue_up(turns, number, order) for number in range(2)]
        last = queue_up(turns, "last", order, last=True)
        for thread in refused:
            thread.join(10)
        turns.refuse_waiting("not those who wait for a last turn")
        with ThreadPoolExecutor(1) as pool, pytest.raises(StoreError, match="closed"):
            pool.submit(turns.turn(10).__enter__).result(10)
        order.append("end of the turn")
    last.join(10)
    assert order == ["the database is closed"] * 2 + ["end of the turn", "last"]


def test_a_last_turn_that_did_not_come_in_time_can_be_asked_for_again():
    turns, order = Turns(), []
    with turns.turn(1):
        with ThreadPoolExecutor(1) as pool, pytest.raises(StoreError, match="busy for"):
            pool.submit(turns.last_turn(0.01).__enter__).result(10)
        threads = [queue_up(turns, number, order, last=True) for number in range(2)]
    for thread in threads:
        thread.join(10)
    assert order == [0, 1]


def test_turns_end_well_whoever_is_refused_leaves_or_closes_at_the_same_moment():
    turns, inside, seen = Turns(), [], set()

    def take(number):
        try:
            with turns.last_turn(10) if number > 950 else turns.turn((number % 7) * 0.0001):
                inside.append(number)
                seen.add(len(inside))
                inside.remove(number)
        except StoreError:
            return
        if number % 5 == 0:
            turns.refuse_waiting("not now")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(take, range(1000)))
    assert seen == {1} and len(turns) == 0
    with turns.last_turn(0):
        pass
