"""Kills processes that write to a store, at random instants, and looks what is left of the records.

A process does one kind of work in a loop and tells of every change that is done; then it is killed
with SIGKILL. The store is opened again, and must have every change that was told of, whole and
once; of the one that was being made, all or nothing; and its journals must make the very same rows.
The kinds are in `crashing_work.py`. Everything lies in a temporary folder and goes.

    python benchmarks/store_crashes.py
    python benchmarks/store_crashes.py --kills 5 --seed 3 --json
"""

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crashing_work import WORKS, Work

from records.errors import CclsearchError
from records.store.database import DATABASE_NAME
from records.store.journal import journal_sizes, unfinished_journals
from tests.support.records import rows_of, rows_of_journals


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was seen of one kind of work."""

    kills: int = 0
    changes: int = 0
    """Told of before the kills."""
    cut_short: int = 0
    """Kills that left something for the next opening to finish or to clear away."""
    faults: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=60, help="of each kind of work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    tallies = {}
    with tempfile.TemporaryDirectory(prefix="cclsearch-crashes-") as folder:
        for name, work in WORKS.items():
            started = time.perf_counter()
            tallies[name] = killed(work, Path(folder) / name, asked.kills, asked.seed)
            if not asked.json:
                show(name, tallies[name], time.perf_counter() - started)
    if asked.json:
        print(json.dumps({name: asdict(tally) for name, tally in tallies.items()}))
    else:
        faults = sum(len(tally.faults) for tally in tallies.values())
        print(f"kills: {sum(tally.kills for tally in tallies.values())}, lost or torn: {faults}")
    return int(any(tally.faults for tally in tallies.values()))


def killed(work: Work, folder: Path, kills: int, seed: int) -> Tally:
    """Kill the work so often, and check the store after each."""
    chance, tally, told = random.Random(f"{seed}/{work.name}"), Tally(), []
    root, again = folder / "store", folder / "again"
    for number in range(kills):
        if number % work.rounds == 0:
            shutil.rmtree(folder, ignore_errors=True)
            root.mkdir(parents=True)
            work.prepare(root, chance)
            told = []
        changes = kill_once(work, root, chance.uniform(0, work.longest_s))
        told += changes
        tally.kills += 1
        tally.changes += len(changes)
        tally.cut_short += is_cut_short(root)
        try:
            work.check(root, told)
            if journal_sizes(root):
                if rows_of_journals(root, again) != rows_of(root):
                    raise ValueError("the journals make other rows than the database has")
                if (root / "artifacts").is_dir():
                    (again / "artifacts").symlink_to(root / "artifacts")
                work.check(again, told)
        except (CclsearchError, ValueError, OSError) as error:
            tally.faults.append(f"kill {number}: {error}")
        shutil.rmtree(again, ignore_errors=True)
    return tally


def kill_once(work: Work, root: Path, delay_s: float) -> list[str]:
    """Do the work in a process for so long, kill it, and give what it told of."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            work.do(root, lambda change: os.write(theirs, f"{change}\n".encode()))
        except CclsearchError:
            traceback.print_exc()
        os._exit(1)
    os.close(theirs)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != -signal.SIGKILL:
        raise SystemExit(f"the work {work.name} ended by itself; see above")
    with os.fdopen(ours, encoding="utf-8") as said:
        return said.read().splitlines()


def is_cut_short(root: Path) -> bool:
    """Whether a kill left work to the next opening."""
    half = bool(unfinished_journals(root))
    try:
        with closing(sqlite3.connect(root / DATABASE_NAME)) as db:
            marks = dict(db.execute("select study_id, byte_count from journals"))
            studies = {name for (name,) in db.execute("select id from studies")}
    except sqlite3.Error:  # not as far as these tables
        return True
    return half or marks != journal_sizes(root) or studies != set(marks)


def show(name: str, tally: Tally, took_s: float) -> None:
    print(
        f"{name:<10}{tally.kills:>5} kills{tally.changes:>8} changes told of"
        f"{tally.cut_short:>5} cut short{len(tally.faults):>5} lost or torn{took_s:>8.1f} s"
    )
    for fault in tally.faults:
        print(f"    {fault}")


if __name__ == "__main__":
    sys.exit(main())
