"""A gc that is killed at any point leaves no record that claims a file that is not there."""

import os
import signal
import sys
from contextlib import closing
from random import Random

import pytest

from search.storage import Rules, collect, plan_removal, verify_files

KILLS = 12
RULES = Rules(keep_best=1, words="traces of all but the best 1 trials")


def gc(kept, killed_at):
    """Collect in a process that is killed before its so-manieth call; how many calls it made."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        calls = 0

        def count(_frame, event, _argument):
            nonlocal calls
            calls += event in {"call", "c_call"}
            if calls == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        with closing(kept.open()) as store:
            collect(store, plan_removal(store, RULES))
        sys.setprofile(None)
        os.write(writing, str(calls).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        return os.waitstatus_to_exitcode(status), told.read()


@pytest.fixture
def whole(kept_store):
    """How many calls a gc makes of a store of two studies that share some traces."""
    kept = kept_store("20260102-000000-bbbb", same=True)
    status, calls = gc(kept, killed_at=0)
    assert (status, kept.traces()) == (0, [1])
    return int(calls)


def test_a_gc_that_is_killed_loses_nothing_it_did_not_tell(whole, made, tmp_path):
    places = [1, *sorted(Random(0).sample(range(2, whole), KILLS - 2)), whole]
    outcomes = set()
    for place in places:
        kept = made.copied("20260102-000000-bbbb", same=True, to=tmp_path / str(place))
        assert gc(kept, place)[0] in {-signal.SIGKILL, 0}  # a later one makes fewer calls
        with closing(kept.open()) as store:
            assert verify_files(store).faults == ()
            collect(store, plan_removal(store, Rules()))
            assert verify_files(store).faults == ()
        left = kept.traces()
        outcomes.add(len(left))
        assert 1 in left
        assert gc(kept, killed_at=0)[0] == 0
        assert kept.traces() == [1]
        with closing(kept.open()) as store:
            assert verify_files(store).faults == ()
    assert outcomes >= {1, 4}
