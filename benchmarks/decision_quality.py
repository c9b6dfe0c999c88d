"""How often each way to decide from launches is right, and how many launches it takes.

The jobs are real: a small training on two gloo ranks, launched in rounds of the same job twice and
of the job slowed by exactly 3 and 10 % of each step. A false claim is "faster" or "slower" of the
identical job; detection is "slower" of a slowed one. Methods see up to 10 launches a side; the
paired ones are the search's own decision, asked after every round until it is settled.

`record` takes rounds for the stored file, which a stopped run continues; `stored` judges by that
file, `live` takes rounds on this machine now and judges by those. Without a word it is `stored`,
then `live`. Rates are over the series of consecutive rounds from every round on; those overlap, so
the intervals are for as many series as share no round. `--shuffled` mixes the rounds first: what
that changes is the doing of drift.

    python benchmarks/decision_quality.py
    python benchmarks/decision_quality.py live --rounds 60
    python benchmarks/decision_quality.py record --rounds 300
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

from decision_rates import Quality, quality
from decision_recording import record
from decision_repeats import Repeats, recorded_repeats
from decision_rounds import read_recordings
from decision_tables import print_quality, print_repeats

STORED = Path(__file__).parent / "data" / "decision_launches.jsonl"
LIVE_ROUNDS = 30
"""About five minutes."""
LEAST_ROUNDS = 2


def main() -> None:
    options = parsed()
    if options.what == "record":
        record(options.file, options.rounds, options.kind, options.seed)
        return
    repeats: list[Repeats | str] = []
    found: list[Quality] = []
    if options.what in ("both", "stored"):
        repeats = list(recorded_repeats())
        found += stored(options.file, shuffled=options.shuffled)
    if options.what in ("both", "live"):
        found += live(options)
    if options.json:
        recorded = [each if isinstance(each, str) else asdict(each) for each in repeats]
        judged = [asdict(each) for each in found]
        print(json.dumps({"recorded": recorded, "judged": judged}, indent=1))
        return
    for told in repeats:
        print_repeats(told)
    for each in found:
        print_quality(each)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How often a decision from launches is right.")
    parser.add_argument(
        "what", nargs="?", choices=("both", "stored", "live", "record"), default="both"
    )
    parser.add_argument("--rounds", type=int, default=LIVE_ROUNDS, help="rounds of four launches")
    parser.add_argument("--file", type=Path, default=STORED, help="where rounds are recorded")
    parser.add_argument("--seed", type=int, default=1, help="of the order within a round")
    parser.add_argument("--shuffled", action="store_true", help="mix the rounds before judging")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--together",
        dest="kind",
        action="store_const",
        const="together",
        default="relaunch",
        help="launches of a round take turns, step by step",
    )
    return parser.parse_args()


def stored(path: Path, *, shuffled: bool) -> Iterator[Quality]:
    if not path.exists():
        print(f"{path} is not there: record rounds first", file=sys.stderr)
        return
    yield from qualities("stored", path, shuffled=shuffled)


def live(options: argparse.Namespace) -> Iterator[Quality]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "live.jsonl"
        record(path, options.rounds, options.kind, options.seed)
        yield from qualities("live", path, shuffled=options.shuffled)


def qualities(source: str, path: Path, *, shuffled: bool) -> Iterator[Quality]:
    recordings = [each for each in read_recordings(path) if len(each.rounds) >= LEAST_ROUNDS]
    if not recordings:
        raise SystemExit(f"{path}: {LEAST_ROUNDS} whole rounds are the least; record more")
    for recording in recordings:
        rounds = list(recording.rounds)
        if shuffled:
            Random(1).shuffle(rounds)
        yield quality(source, replace(recording, rounds=tuple(rounds)))


if __name__ == "__main__":
    main()
