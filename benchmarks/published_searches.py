"""What is wrong in the published searches of CCL-Search, as far as their own records show it.

    python benchmarks/published_searches.py shared/data/ccl_search_histories.jsonl

Each search gets a line, and each fault in it a line with its evidence; at the end stands how many
searches have which fault. Of the 15 published ones, 10 searched a knob that did nothing, 6 took
results of a cache for launches, 5 compared trials that did different work, 4 announced the luckiest
of equal launches, and 3 counted failures of the machine as those of a configuration.
"""

import argparse
from collections import Counter
from pathlib import Path

from history_faults import audit
from recorded_searches import searches_of

from records.trial import History
from search.views.format import format_count


def main() -> None:
    """Print the faults of every search in the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of recorded searches")
    counts: Counter[str] = Counter()
    for path in parser.parse_args().files:
        for found in searches_of(path):
            faults = audit(found.study, History(tuple(found.trials)), found.repeats)
            counts.update(fault.name for fault in faults)
            measured = sum(trial.score is not None for trial in found.trials)
            print(f"{found.study.name}: {len(found.trials)} trials, {measured} measured")
            for fault in faults:
                print(f"  {fault.name}: {fault.words}")
    for name, count in counts.most_common():
        print(f"{name}: {format_count(count, 'search', 'searches')}")


if __name__ == "__main__":
    main()
