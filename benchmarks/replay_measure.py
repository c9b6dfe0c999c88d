"""Whether a replay tells what still holds from what does not: fresh studies, launched again.

Each time the built-in study is searched, then its best is launched again twice: on the machine as
it is, where the result has to be confirmed, and beside processes that burn its cores, where it
must not be. Everything runs through the command line, in a store that is removed at the end.

    python benchmarks/replay_measure.py --times 3 --trials 3
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

CCLSEARCH = (sys.executable, "-m", "search")
AS_IT_IS, SLOWED = "as it is", "slowed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="fresh studies")
    parser.add_argument("--trials", type=int, default=3, help="trials of each")
    parser.add_argument("--within", default="10%", help="how much worse a value may be")
    parser.add_argument("--rounds", type=int, default=12, help="most rounds of a replay")
    parser.add_argument(
        "--burners", type=int, default=2 * (os.cpu_count() or 1), help="processes that slow it down"
    )
    asked = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for number in range(asked.times):
        with tempfile.TemporaryDirectory(prefix="replay-measure-") as folder:
            search(Path(folder), asked.trials)
            for how, burners in ((AS_IT_IS, 0), (SLOWED, asked.burners)):
                began = time.perf_counter()
                with burning(burners):
                    told = replay(Path(folder), asked.within, asked.rounds)
                counts[how, told["holds"]] += 1
                took_s = time.perf_counter() - began
                print(
                    f"{number} {how}: {told['holds']}, {told['launches']} launches, {took_s:.0f} s"
                )
                for claim in told["trials"][0]["claims"]:
                    print(f"    {claim['name']}: {claim['holds']}, {claim['why']}", flush=True)
    for (how, holds), count in sorted(counts.items()):
        print(f"{how}: {holds} {count} of {asked.times}")


def search(store: Path, trials: int) -> None:
    """Search the built-in study."""
    last_event(["run", "--trials", str(trials), "--json"], store)


def replay(store: Path, within: str, rounds: int) -> dict:
    """Launch the best of the newest study again."""
    words = ["--mode", "measure", "--within", within, "--rounds", str(rounds), "--json"]
    return last_event(["replay", *words], store)


def last_event(words: Sequence[str], store: Path) -> dict:
    """Run a command and give the last of its events."""
    ended = subprocess.run(
        [*CCLSEARCH, *words, "--store", str(store)], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(ended.stdout.splitlines()[-1])


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def burn() -> None:
    """Take all time of a core."""
    while True:
        pass


if __name__ == "__main__":
    main()
