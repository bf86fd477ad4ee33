"""A thread that stays: it does what it is given, in order, also in a child made by fork, and goes when it is dismissed."""

from __future__ import annotations

import os
import threading
import time
import weakref

import pytest

from perdure.training.hands import Hand


def done_by(hand: Hand, results: list[int], number: int) -> None:
    done = threading.Event()
    hand.do(lambda: (results.append(number), done.set()))
    assert done.wait(30)


def test_it_does_one_thing_after_the_other_in_one_thread():
    hand, seen = Hand("test"), []
    over = threading.Event()
    for number in range(50):
        hand.do(lambda number=number: seen.append((number, threading.get_ident())))
    hand.do(over.set)
    assert over.wait(30)
    assert [number for number, _ in seen] == list(range(50))
    assert len({thread for _, thread in seen} - {threading.get_ident()}) == 1
    hand.dismiss()


def test_a_child_made_by_fork_gets_a_thread_of_its_own():
    hand, results = Hand("test"), []
    done_by(hand, results, 1)
    child = os.fork()
    if child == 0:
        try:
            done_by(hand, results, 2)
            os._exit(0 if results == [1, 2] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hand.dismiss()


def test_dismissed_it_goes_and_can_be_called_again():
    hand, results = Hand("test"), []
    done_by(hand, results, 1)
    thread = hand._thread
    hand.dismiss()
    thread.join(30)
    assert not thread.is_alive()
    done_by(hand, results, 2)
    hand.dismiss()


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="has no priorities")
def test_it_steps_back_and_nobody_else_does():
    hand, seen = Hand("test", nice=5), []
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    done = threading.Event()
    hand.do(lambda: (seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())), done.set()))
    assert done.wait(30)
    assert seen == [max(before, 5)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    hand.dismiss()


def test_it_holds_nothing_of_what_it_did_while_it_waits():
    class Thing:
        def work(self) -> None:
            pass

    hand, thing = Hand("test"), Thing()
    gone = weakref.ref(thing)
    hand.do(thing.work)
    del thing
    until = time.monotonic() + 10
    while gone() is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert gone() is None
    hand.dismiss()
