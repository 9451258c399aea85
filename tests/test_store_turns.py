"""Turns: one at a time, in the order asked for, and no turn is ever lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gligabao.errors import StoreError
from gligabao.store.turns import Turns


def queue_up(turns, number, order):
    """Start a thread that waits for its turn, and return it once it does."""
    waiting = len(turns)

    def take():
        with turns.turn(10):
            order.append(number)

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
