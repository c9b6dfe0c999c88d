"""Cached values: computed once for each version, by one thread."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from search.service.data import VersionedCache


def test_a_value_is_computed_once_for_each_version():
    cache, made = VersionedCache(2), count()
    got = [cache.get("a", version, lambda: next(made)) for version in (1, 1, 2, 2, 1)]
    assert got == [0, 0, 1, 1, 2]


def test_the_least_recently_used_key_is_dropped():
    cache, made = VersionedCache(2), count()
    got = [cache.get(key, 1, lambda: next(made)) for key in "abacab"]
    assert got == [0, 1, 0, 2, 0, 3]


def test_threads_that_ask_in_parallel_compute_it_once():
    cache, made = VersionedCache(2), count()

    def slow():
        time.sleep(0.01)
        return next(made)

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(cache.get, "a", 1, slow) for _ in range(8)]
        assert {one.result() for one in futures} == {0}


def test_a_failed_computation_is_repeated_the_next_time():
    cache = VersionedCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", 1, lambda: 1 // 0)
    assert cache.get("a", 1, lambda: 5) == 5
