"""What gc removes and leaves: nothing that a record cites, unless it was told to and says so."""

import json
import os
import time
from contextlib import closing

import pytest

from records.errors import StoreError
from search.storage import Rules, collect, plan_removal

OLD = time.time() - 2 * 86_400


def orphan(kept, text="nobody cites this\n" * 100, age_s=2 * 86_400):
    with closing(kept.open()) as store:
        path = store.artifacts.path(store.artifacts.keep_text(text, "orphan").digest)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def all_files(kept):
    return sorted(path for path in (kept.root / "artifacts").rglob("*") if path.is_file())


def aged(kept):
    for path in all_files(kept):
        os.utime(path, (OLD, OLD))


def test_only_what_no_record_cites_and_killed_writers_left_goes(kept_store, cclsearch):
    kept = kept_store()
    cited = all_files(kept)
    strange, *halves = (
        kept.root / "artifacts" / name for name in ("ab/notes.txt", ".incoming-a", "ab/.incoming-b")
    )
    strange.parent.mkdir(exist_ok=True)
    for path in (strange, *halves):
        path.write_text("mine, or half a file")
    aged(kept)
    orphan(kept)

    ended = cclsearch("gc", "--store", kept.root)

    assert ended.code == 0
    assert ended.out.splitlines()[0].startswith("3 files that no record refers to: ")
    assert ended.out.splitlines()[1].startswith("3 files removed, ")
    assert all_files(kept) == sorted([*cited, strange])
    assert cclsearch("gc", "--store", kept.root).out.startswith("0 files removed, 0 B freed\n")


def test_what_a_trial_under_way_may_cite_stays_for_a_day(kept_store, cclsearch):
    kept = kept_store()
    young, half = orphan(kept, age_s=3600), kept.root / "artifacts" / ".incoming-abc"
    half.write_text("half a file")

    assert "2 files of the last day, " in cclsearch("gc", "--store", kept.root).out
    assert young.exists()
    assert half.exists()


def test_a_dry_run_removes_nothing_and_says_how_much_would_go(kept_store, cclsearch):
    kept = kept_store()
    path = orphan(kept)
    size = path.stat().st_size

    ended = cclsearch("gc", "--dry-run", "--keep-best", 0, "--json", "--store", kept.root)

    told = json.loads(ended.out)
    assert (told["removed"], told["freed_bytes"]) == (0, 0)
    assert told["uncited"] == [str(path)]
    assert len(told["traces"]) == 4
    assert path.stat().st_size == size
    assert kept.traces() == [0, 1, 2, 3]


def test_a_file_that_only_a_journal_cites_stays_and_one_that_cannot_go_is_one_line(
    kept_store, monkeypatch
):
    kept = kept_store()
    path = orphan(kept)
    journals = kept.root / "journal"
    whole = (journals / "20260101-000000-aaaa.jsonl").read_text(encoding="utf-8")
    damaged = f"damaged {path.name.removesuffix('.zst')} damaged\n{whole}"
    (journals / "unreadable.jsonl").write_text(damaged, encoding="utf-8")
    other = orphan(kept, "of nobody")

    def refused(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    with closing(kept.open()) as store:
        plan = plan_removal(store, Rules())
        assert [found.path for found in plan.orphans] == [other]
        monkeypatch.setattr("pathlib.Path.unlink", refused)
        with pytest.raises(StoreError, match=r"cannot remove .*: Permission denied"):
            collect(store, plan)


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (["--keep-best", "0"], []),
        (["--keep-best", "2"], [1, 2]),
        (["--keep-best", "9"], [0, 1, 2, 3]),
        (["--traces-older-than", "1h"], []),
        (["--traces-older-than", "5000w"], [0, 1, 2, 3]),
        (["--traces-older-than", "1h", "--keep-best", "1"], [1]),
        (["--max-size", "1GB"], [0, 1, 2, 3]),
        (["--max-size", "0B"], []),
        (["--max-size", "0B", "--keep-best", "1"], [1]),
    ],
)
def test_traces_go_by_rule_and_all_else_stays(kept_store, cclsearch, flags, left):
    kept = kept_store()
    aged(kept)

    ended = cclsearch("gc", *flags, "--yes", "--store", kept.root)

    assert ended.code == 0
    assert kept.traces() == left
    assert all(kept.path_of(ordinal, "rank0.log").exists() for ordinal in range(4))


def test_a_size_is_kept_by_the_oldest_traces_going_first(kept_store, cclsearch):
    kept = kept_store()
    aged(kept)
    total = sum(path.stat().st_size for path in all_files(kept))

    cclsearch("gc", "--max-size", f"{total - 1}B", "--yes", "--store", kept.root)
    assert kept.traces() == [1, 2, 3]

    cclsearch("gc", "--max-size", f"{total / 2:.0f}B", "--yes", "--store", kept.root)
    assert sum(path.stat().st_size for path in all_files(kept)) <= total / 2


def test_a_trace_that_a_trial_which_keeps_it_cites_too_stays(kept_store, cclsearch):
    kept = kept_store("20260102-000000-bbbb", same=True)
    with closing(kept.open()) as store:
        best = store.leading("20260102-000000-bbbb", 2)

    cclsearch("gc", "--keep-best", "2", "--yes", "--store", kept.root)

    assert tuple(sorted(best)) == (1, 2)
    assert kept.traces() == [1, 2]


def test_every_study_that_cites_a_removed_trace_says_so(kept_store, cclsearch):
    kept = kept_store("20260102-000000-bbbb", same=True)
    aged(kept)
    cclsearch("gc", "--keep-best", "3", "--yes", "--store", kept.root)
    digest = kept.trace_of(0).name.removesuffix(".zst")
    for path in kept.root.glob("cclsearch.db*"):  # what is known is in the journals
        path.unlink()
    with closing(kept.open()) as store:
        for study_id in ("20260101-000000-aaaa", "20260102-000000-bbbb"):
            rule = store.citations.removal(study_id, digest).rule
            assert rule == "traces of all but the best 3 trials"


def test_nobody_removes_cited_traces_from_a_pipe_without_yes(kept_store, cclsearch):
    kept = kept_store()

    ended = cclsearch("gc", "--keep-best", "1", "--store", kept.root)

    assert ended.code == 2
    assert ended.err == (
        "error: 3 traces of 3 trials would be removed permanently; "
        "list them with --dry-run, or add --yes\n"
    )
    assert kept.traces() == [0, 1, 2, 3]


def test_on_a_terminal_gc_lists_and_asks(kept_store, cclsearch, monkeypatch):
    kept = kept_store()
    aged(kept)
    answers = iter([False, True])
    monkeypatch.setattr("search.cli.store.on_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _: next(answers))

    ended = cclsearch("gc", "--keep-best", "3", "--store", kept.root)
    assert "study 20260101-000000-aaaa, trial 0 of 2026-01-01: 1 trace, " in ended.out
    assert ended.out.endswith("nothing was removed\n")
    assert kept.traces() == [0, 1, 2, 3]

    assert cclsearch("gc", "--keep-best", "3", "--store", kept.root).code == 0
    assert kept.traces() == [1, 2, 3]


def test_a_kill_between_record_and_removal_is_finished_by_the_next_gc(kept_store, cclsearch):
    kept = kept_store()
    aged(kept)
    digest = kept.trace_of(0).name.removesuffix(".zst")
    with closing(kept.open()) as store:
        store.remove_files("20260101-000000-aaaa", [digest], "traces older than 30d")
    assert kept.trace_of(0).exists()

    out = cclsearch("gc", "--store", kept.root).out

    assert out.startswith("1 file already recorded as removed: ")
    assert kept.traces() == [1, 2, 3]


def test_a_kill_before_all_who_cite_a_trace_say_so_leaves_it_there(kept_store, cclsearch):
    kept = kept_store("20260102-000000-bbbb", same=True)
    aged(kept)
    digest = kept.trace_of(0).name.removesuffix(".zst")
    with closing(kept.open()) as store:
        store.remove_files("20260101-000000-aaaa", [digest], "traces older than 30d")

    assert cclsearch("gc", "--store", kept.root).out.startswith("0 files removed")
    assert kept.traces() == [0, 1, 2, 3]


def test_a_trace_that_was_kept_again_after_its_removal_stays(kept_store, cclsearch):
    kept = kept_store()
    aged(kept)
    cclsearch("gc", "--keep-best", "3", "--yes", "--store", kept.root)
    with closing(kept.open()) as store:
        store.artifacts.keep_text("rank0_trace.json of trial 0\n" * 1000, "rank0_trace.json")
    assert kept.traces() == [0, 1, 2, 3]

    cclsearch("gc", "--store", kept.root)

    assert kept.traces() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--traces-older-than", "30"),
        ("--traces-older-than", "99999999999d"),
        ("--max-size", "10"),
        ("--max-size", "nan GB"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(kept_store, cclsearch, flag, text):
    ended = cclsearch("gc", f"{flag}={text}", "--yes", "--store", kept_store().root)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {flag} {text!r} is not a ")
