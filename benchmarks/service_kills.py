"""Kills the service, and now and then a search of it, at random instants, again and again.

Studies are submitted all the time, and some are cancelled. Whoever was answered that a study
is queued must find it searched to its end, by one process at a time; when all is over no process is
left, each finished trial is on record once, and what could not be read back is told. The launches
are of a script that takes no torch. Everything lies in a temporary folder and goes.

    python benchmarks/service_kills.py
    python benchmarks/service_kills.py --kills 100 --seed 3 --json
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx2

from records.errors import CclsearchError
from records.store.store import Store
from search.service.queue import RunTable, State, Submitted
from search.service.runner import MOST_CRASHES, table_path
from tests.support.service import Serving, configured, searching

LONGEST_S = 8.0
SEARCH_KILLS = 0.5
NEW, CANCELLED = 0.7, 0.2
"""How often what is submitted was not before, and how often it is cancelled then."""
LIMIT_S = 600.0


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was seen."""

    kills: int = 0
    search_kills: int = 0
    answered: int = 0
    refused: int = 0
    cancelled: int = 0
    finished: int = 0
    faults: list[str] = field(default_factory=list)


class Attack:
    """A service that is killed, and what it has answered."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.store = folder, folder / "store"
        self.chance, self.tally = random.Random(seed), Tally()
        self.cancelled: set[str] = set()
        self.answered: list[str] = []
        self.hits = Counter[str]()
        self.last_key = 0

    def submit(self, client: httpx2.Client) -> None:
        """Submit a study, or the last one again as a careful client does; now and then cancel."""
        self.last_key += self.chance.random() < NEW
        answer = client.post(
            "/studies",
            json={"environment": "mine", "strategy": "random", "trials": 1},
            headers={"idempotency-key": f"study {self.last_key}"},
        )
        if answer.status_code != 201:
            self.tally.refused += 1
            return
        study_id = answer.json()["id"]
        if study_id not in self.answered:
            self.answered.append(study_id)
        if self.chance.random() < CANCELLED:
            self.cancelled.add(study_id)  # asked is done, for whoever is not answered
            client.post(f"/studies/{study_id}/cancel")

    def round(self) -> None:
        """Start the service, use it for a while, and kill it."""
        with Serving(self.folder) as serving:
            after_s = self.chance.uniform(0, LONGEST_S)
            killer = threading.Timer(after_s, self.kill, [serving])
            killer.start()
            with suppress(httpx2.HTTPError):  # the kill comes while it answers
                while killer.is_alive():
                    self.submit(serving.client)
                    self.look()
                    time.sleep(self.chance.uniform(0, LONGEST_S / 4))
            killer.join()
        self.look()

    def kill(self, serving: Serving) -> None:
        """Kill the service, and perhaps what it searches, at the same instant."""
        serving.kill_only()
        self.tally.kills += 1
        for study_id, processes in searching(self.store).items():
            # One that is lost too often in a row is given up, as it should be.
            if self.hits[study_id] < MOST_CRASHES and self.chance.random() < SEARCH_KILLS:
                self.hits[study_id] += 1
                with suppress(ProcessLookupError):
                    os.kill(processes[0], signal.SIGKILL)
                    self.tally.search_kills += 1

    def look(self) -> None:
        """No study has two processes, and no two studies run on devices that bear one."""
        found = searching(self.store)
        for study_id, processes in found.items():
            if len(processes) > 1:
                self.tally.faults.append(f"{study_id} is searched by {processes}")
        if len(found) > 1:
            again = searching(self.store)  # one may have been ending while the next began
            if len(again) > 1 and again == found:
                self.tally.faults.append(f"several are searched at once: {found}")

    def settle(self) -> None:
        """Let the service come to its end, and look what is left."""
        until = time.monotonic() + LIMIT_S
        with Serving(self.folder), closing(RunTable(table_path(self.store))) as table:
            while table.under_way() and time.monotonic() < until:
                self.look()
                time.sleep(0.2)
            left = [each.study_id for each in table.under_way()]
            rows = {study_id: table.find(study_id) for study_id in self.answered}
        faults = self.tally.faults
        if left:
            faults.append(f"not over after {LIMIT_S:g} s: {left}")
        if processes := searching(self.store):
            faults.append(f"left behind: {processes}")
        self.tally.answered = len(self.answered)
        with closing(Store(self.store)) as records:
            for study_id, row in rows.items():
                if row is None:
                    faults.append(f"{study_id} was answered and is lost")
                else:
                    self._check(study_id, row, records)

    def _check(self, study_id: str, row: Submitted, records: Store) -> None:
        faults = self.tally.faults
        try:
            history = records.history(study_id)
        except CclsearchError as error:
            faults.append(str(error))
            return
        ordinals = [trial.ordinal for trial in history]
        if ordinals != list(range(len(ordinals))):
            faults.append(f"{study_id} has trials {ordinals}")
        if row.state is State.FINISHED and ordinals == [0]:
            self.tally.finished += 1
        elif row.state is State.CANCELLED and study_id in self.cancelled:
            self.tally.cancelled += 1
        else:
            faults.append(f"{study_id} is {row.state} with trials {ordinals}: {row.message}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cclsearch-kills-") as name:
        folder = Path(name)
        configured(folder)
        attack = Attack(folder, asked.seed)
        for _ in range(asked.kills):
            attack.round()
        attack.settle()
    tally = attack.tally
    if asked.json:
        print(json.dumps(asdict(tally)))
    else:
        print(
            f"kills: {tally.kills} of the service, {tally.search_kills} of searches\n"
            f"studies: {tally.answered} answered, {tally.finished} finished, "
            f"{tally.cancelled} cancelled, {tally.refused} refused\n"
            f"faults: {len(tally.faults)}"
        )
        print("\n".join(tally.faults))
    return int(bool(tally.faults))


if __name__ == "__main__":
    sys.exit(main())
