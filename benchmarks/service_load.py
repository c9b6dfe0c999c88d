"""What two hundred readers of the service cost: them, the service, and the search that it runs.

A store gets one study of 100,000 trials and some small ones, and the real service serves it. Then
it searches, and while one launch takes step after step, readers ask and rest in turns. A reader is
an open page: it asks for the large study once a second, now and then for its history and for a page
of its trials; every other one also follows the events of what runs, all the time. Step times while
readers ask and while they rest are judged as launches of a study are, a period of each being a
round: periods are short because the speed of a machine that others share wanders within seconds.

Readers run in this process at the lowest priority, since in earnest they are other machines: what
they measure of the service includes how long they waited for a core themselves.

    python benchmarks/service_load.py
    python benchmarks/service_load.py --readers 50 --trials 10000 --rounds 50 --json
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from service_readers import Readers

from evaluator.timing.decision import DecisionRule, LaunchValue
from records.codec import to_json
from records.store.store import Store
from records.trial import Trial
from search.client.client import Client
from search.compare.compare import (
    Comparisons,
    ComparisonSide,
    Replicates,
    Turn,
    judge_replicates,
)
from search.compare.view import verdict_words
from tests.support.records import failed, study, trial
from tests.support.service import Serving

LARGE, SMALL = "large", "small-{:03}"
SMALL_STUDIES, SMALL_TRIALS = 50, 200
MB = 1e6
TARGET_MS = 100.0
WAIT_S = 300.0
SETTLED_S = 0.1
"""Answers that were asked for are there by then."""
STUDY = """\
name = "one-configuration"
strategy = "offline"
[workload]
name = "decoder-4L"
layer_count = 4
hidden_size = 128
head_count = 4
kv_head_count = 4
ffn_size = 352
vocab_size = 512
sequence_length = 64
global_batch = 4
[environment]
device = "cpu"
world_size = {ranks}
ranks_per_node = {ranks}
[space.dp_replicate]
choices = [{ranks}]
[space.micro_batch]
choices = [2]
[budget]
trials = 1
[measure]
warmup_steps = 3
timed_steps = 1000000
max_timed_steps = 1000000
profiled_steps = 0
self_test_rounds = 0
race_rounds = 0
confirm_top = 0
timeout_s = 3600.0
[launch]
memory_budget_bytes = 1000000000
"""
CONFIG = """\
[limits]
requests_per_s = 10000.0
burst = 100000
event_streams = 1000
queued_studies = 100
[environment.bench]
study = "study.toml"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Milliseconds that readers waited for one kind of answer."""

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    most_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found."""

    readers: int
    trials: int
    waits: dict[str, Waits]
    wrong_answers: int
    events: int
    service_before_mb: float
    service_after_mb: float
    service_most_mb: float
    service_cores: float
    service_resting_cores: float
    readers_cores: float
    step_times_quiet_s: tuple[float, ...]
    step_times_loaded_s: tuple[float, ...]
    verdict: str
    words: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--trials", type=int, default=100_000, help="in the large study")
    parser.add_argument("--rounds", type=int, default=500, help="periods of each kind")
    parser.add_argument("--seconds", type=float, default=0.25, help="that a period lasts")
    parser.add_argument(
        "--ranks", type=int, default=1, help="processes of the search, each of which fills a core"
    )
    parser.add_argument("--margin", type=float, default=0.02)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cclsearch-load-") as folder:
        root = Path(folder)
        fill(root / "store", asked.trials)
        with serving(root, asked.ranks) as found:
            result = measured(root, found.link, found.process_id, asked)
    print(to_json(result)) if asked.json else show(result)
    page = result.waits["study"]
    return int(page.p95_ms > TARGET_MS or result.wrong_answers > 0)


def fill(root: Path, count: int) -> None:
    """One large study and many small ones."""
    with closing(Store(root)) as store:
        for number in range(SMALL_STUDIES):
            store.add_study(SMALL.format(number), study(), "1", trials(SMALL_TRIALS))
        store.add_study(LARGE, study(), "1", trials(count))
    print(f"a store with {count} trials in one study is there", file=sys.stderr)


def trials(count: int) -> Iterator[Trial]:
    """Trials of which every tenth failed."""
    for ordinal in range(count):
        cost = 1 + (ordinal * 7919 % count) / count
        yield trial(ordinal, failed() if ordinal % 10 == 9 else cost, {"n": ordinal, "tp": 2})


@contextmanager
def serving(root: Path, ranks: int) -> Iterator[Serving]:
    """The service as an operator starts it."""
    (root / "study.toml").write_text(STUDY.format(ranks=ranks), encoding="utf-8")
    (root / "service.toml").write_text(CONFIG, encoding="utf-8")
    with Serving(root) as found:
        yield found


def measured(root: Path, url: str, pid: int, asked: argparse.Namespace) -> Result:
    """One launch during which readers ask and rest; which kind of period comes first, by turns."""
    before_mb = memory_mb(pid, "VmRSS")
    readers = Readers(url, LARGE, asked.readers)
    periods, took = list[Period](), {True: Took(), False: Took()}
    with Client(url) as client, closing(readers):
        study = client.submit("bench")
        next(event for event in study.events() if event.facts.get("phase") == "timed")
        readers.open_pages(study.id)
        for number in range(2 * asked.rounds):
            has_readers = number % 4 in {1, 2}
            with readers.reading() if has_readers else nullcontext():
                periods.append(period(has_readers, pid, readers, took[has_readers], asked.seconds))
            if number % 100 == 99:
                print(f"{number + 1} of {2 * asked.rounds} periods", file=sys.stderr)
        starts_ns = step_starts_ns(root, study.id)
        study.cancel()
        study.wait(WAIT_S)
    quiet, loaded = (
        [p.turn(starts_ns) for p in periods if p.has_readers is kind] for kind in (False, True)
    )
    found = compared(quiet, loaded, asked.margin)
    return Result(
        readers=asked.readers,
        trials=asked.trials,
        waits={name: waits(seconds) for name, seconds in readers.waited_s.items()},
        wrong_answers=readers.wrong,
        events=readers.events,
        service_before_mb=before_mb,
        service_after_mb=memory_mb(pid, "VmRSS"),
        service_most_mb=memory_mb(pid, "VmHWM"),
        service_cores=took[True].service_s / took[True].wall_s,
        service_resting_cores=took[False].service_s / took[False].wall_s,
        readers_cores=took[True].readers_s / took[True].wall_s,
        step_times_quiet_s=tuple(turn.launch.value for turn in quiet),
        step_times_loaded_s=tuple(turn.launch.value for turn in loaded),
        verdict=found.lines[0].comparison.verdict.value,
        words=verdict_words(found.lines[0], found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time with or without readers, by this machine's monotonic clock."""

    has_readers: bool
    start_ns: int
    end_ns: int

    def turn(self, starts_ns: Sequence[int]) -> Turn:
        """The mean step time of the steps that lie in it."""
        inside = [at for at in starts_ns if self.start_ns <= at < self.end_ns]
        seconds = (inside[-1] - inside[0]) / (len(inside) - 1) / 1e9
        return Turn(launch=LaunchValue(value=seconds), order=float(self.start_ns))


def period(has_readers: bool, pid: int, readers: Readers, took: "Took", seconds: float) -> Period:
    """Wait for everyone to ask, or to have their answers, and then for a while."""
    time.sleep(SETTLED_S)
    start_ns, service_s, readers_s = time.perf_counter_ns(), cpu_s(pid), readers.cpu_s()
    time.sleep(seconds)
    end_ns = time.perf_counter_ns()
    took.wall_s += (end_ns - start_ns) / 1e9
    took.service_s += cpu_s(pid) - service_s
    took.readers_s += readers.cpu_s() - readers_s
    return Period(has_readers=has_readers, start_ns=start_ns, end_ns=end_ns)


def step_starts_ns(root: Path, study_id: str) -> list[int]:
    """When each step of the launch under way began, as its first rank tells."""
    (path,) = (root / "store" / "work" / study_id).rglob("rank0.progress.jsonl")
    *lines, _torn = path.read_text(encoding="utf-8").split("\n")
    told = map(json.loads, lines)
    return [one["at_ns"] for one in told if one["phase"] == "timed" and one["step"] is not None]


@dataclass(slots=True)
class Took:
    """Seconds of one kind of period, and those of a core that went to service and readers."""

    wall_s: float = 0.0
    service_s: float = 0.0
    readers_s: float = 0.0


def compared(quiet: Sequence[Turn], loaded: Sequence[Turn], margin: float) -> Comparisons:
    """What the decision core says of launches with readers against those without."""
    rule = DecisionRule(look_often=False, margin=margin)
    a, b = (
        Replicates(
            values=tuple(turn.launch.value for turn in turns),
            rounds={str(number): turn for number, turn in enumerate(turns)},
        )
        for turns in (quiet, loaded)
    )
    return Comparisons(
        a=ComparisonSide(name="without readers"),
        b=ComparisonSide(name="with readers"),
        quantity="step_time",
        unit="s",
        lines=(judge_replicates("step_time", a, b, rule),),
        rule=rule,
    )


def waits(seconds: Sequence[float]) -> Waits:
    """What waiting was like."""
    ordered = sorted(1e3 * second for second in seconds)
    p50, p95, p99 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95, 0.99))
    return Waits(count=len(ordered), p50_ms=p50, p95_ms=p95, p99_ms=p99, most_ms=ordered[-1])


def memory_mb(pid: int, which: str) -> float:
    """Memory of a process: VmRSS now, VmHWM at most."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(rf"{which}:\s+(\d+) kB", status)[0]) * 1024 / MB


def cpu_s(pid: int) -> float:
    """Seconds of a core that a process took so far, without those of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(result: Result) -> None:
    """Print everything."""
    print(f"{result.readers} readers, {result.trials} trials in the study that they look at")
    print(f"{'milliseconds':<14}{'answers':>9}{'p50':>9}{'p95':>9}{'p99':>9}{'most':>9}")
    for name, one in result.waits.items():
        cells = (one.p50_ms, one.p95_ms, one.p99_ms, one.most_ms)
        print(f"{name:<14}{one.count:>9}" + "".join(f"{cell:>9.1f}" for cell in cells))
    print(f"wrong answers: {result.wrong_answers}; events that readers got: {result.events}")
    print(
        f"memory of the service: {result.service_before_mb:.0f} MB before, "
        f"{result.service_after_mb:.0f} MB after, {result.service_most_mb:.0f} MB at most"
    )
    print(
        f"cores: service {result.service_cores:.2f} ({result.service_resting_cores:.2f} while "
        f"readers rest), readers {result.readers_cores:.2f}"
    )
    for name, values in (
        ("without", result.step_times_quiet_s),
        ("with", result.step_times_loaded_s),
    ):
        least, most = 1e3 * min(values), 1e3 * max(values)
        middle = 1e3 * median(values)
        print(f"step time {name} readers: {middle:.1f} ms, {least:.1f} to {most:.1f} by period")
    print(f"the search (A without readers, B with): {result.verdict}: {result.words}")


if __name__ == "__main__":
    sys.exit(main())
