"""What is kept of answers: made once for each version, by one thread."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from search.service.cache import Kept


def test_a_value_is_made_once_for_each_version():
    kept, made = Kept(2), count()
    got = [kept.get("a", version, lambda: next(made)) for version in (1, 1, 2, 2, 1)]
    assert got == [0, 0, 1, 1, 2]


def test_the_key_that_was_not_asked_for_longest_is_dropped():
    kept, made = Kept(2), count()
    got = [kept.get(key, 1, lambda: next(made)) for key in "abacab"]
    assert got == [0, 1, 0, 2, 0, 3]


def test_many_threads_that_ask_at_once_have_it_made_once():
    kept, made = Kept(2), count()

    def slow():
        time.sleep(0.01)
        return next(made)

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(kept.get, "a", 1, slow) for _ in range(8)]
        assert {one.result() for one in asked} == {0}


def test_what_could_not_be_made_is_made_the_next_time():
    kept = Kept(2)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", 1, lambda: 1 // 0)
    assert kept.get("a", 1, lambda: 5) == 5
