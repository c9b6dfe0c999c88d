"""Failures that are provoked, and understood; and a search that is killed, which leaves nothing.

The ranks' misdeeds are those of `benchmarks/failures.py`, on the device that is here.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from part import Findings, Grid, Place
from provoked import CRASH, HANG, INFRASTRUCTURE, MIB, OUT_OF_MEMORY, Case
from provoking import Lane, marked_processes
from study_part import study_file

from evaluator.estimate.memory import estimate_memory
from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import nvidia_smi
from evaluator.rank.job import DeviceKind
from evaluator.rank.protocol import RankFile
from evaluator.recipes.builtin import BuiltinRecipe, rank_config, rank_workload
from records.expression import format_bytes
from records.trial import Config, Failed
from search.settings import trial_environment
from search.study.spaces import completed
from search.study.study_file import builtin_study, read_study_file

ONE_RANK = (0,)
CASES = (
    Case(kind=OUT_OF_MEMORY, what="allocate", argument=1 << 42, ranks=ONE_RANK),
    Case(
        kind=OUT_OF_MEMORY,
        what="allocate",
        argument=1 << 30,
        ranks=ONE_RANK,
        memory_budget_bytes=200 * MIB,
    ),
    Case(kind=CRASH, what="read freed memory", ranks=ONE_RANK),
    Case(kind=CRASH, what="index out of range", ranks=ONE_RANK),
    Case(kind=INFRASTRUCTURE, what="signal", argument="SIGKILL", ranks=ONE_RANK),
    Case(kind=HANG, what="sleep", ranks=ONE_RANK),
)
ILLEGAL_ACCESS = "illegal memory access"
BUDGET_SHARE = 0.5


def provoke(place: Place) -> Findings:
    """Let ranks fail in known ways; then train with half of the memory that it should take."""
    found = Findings(lead="Ranks that fail in a known way, and the kind given to each failure.")
    rows, ended_cases = list[tuple[str, ...]](), []
    machine = replace(place.machine, world_size=1, ranks_per_node=1)
    lane = Lane(machine, trial_environment())
    try:
        lane.warm()
        for case in CASES:
            with tempfile.TemporaryDirectory() as folder:
                ended = lane.run(case, Path(folder))
            right = "yes" if ended.is_right else "NO"
            rows.append((case.name, case.kind.value, ended.given, right, ended.message))
            ended_cases.append({"case": case.name, "given": ended.given, "message": ended.message})
            if not ended.is_right:
                found.doubts.append(
                    f"{case.name}: given {ended.given}, expected {case.kind}; "
                    f"{ended.orphan_count} processes left: {ended.message}"
                )
            is_illegal = place.has_gpu and case.what == "read freed memory"
            if is_illegal and ILLEGAL_ACCESS not in ended.message:
                found.doubts.append(f"{case.name} was no illegal access: {ended.message}")
    finally:
        left = lane.close()
    if left:
        found.doubts.append(f"{left} processes outlived their launcher")
    words, failed = starved(place, found)
    rows.append(failed)
    found.facts.append(("training with too little memory", words))
    headings = ("what", "expected", "given", "right", "message")
    found.tables.append(Grid(about="Provoked failures", headings=headings, rows=rows))
    found.data = {"cases": ended_cases, "starved": words}
    return found


def starved(place: Place, found: Findings) -> tuple[str, tuple[str, ...]]:
    """Train under a memory budget of half of the estimate, which has to run out."""
    study = read_study_file(study_file(place), builtin_study(place.machine))
    work = replace(study.workload, vocab_size=32000, sequence_length=128, global_batch=8)
    study = completed(replace(study, workload=work))
    config = Config({"micro_batch": work.global_batch // study.environment.world_size})
    recipe, device = BuiltinRecipe(), DeviceKind(study.environment.device)
    if study.environment.world_size > 1:
        config = Config({**config.values, "dp_replicate": study.environment.world_size})
    settings = rank_config({**study.space.defaults, **config.values})
    estimated = estimate_memory(rank_workload(work), settings, device).total_bytes
    budget = round(BUDGET_SHARE * estimated)
    study = replace(study, launch=replace(study.launch, memory_budget_bytes=budget))
    with (
        closing(LocalLauncher(trial_environment(), study.launch.threads_per_rank)) as launcher,
        tempfile.TemporaryDirectory() as folder,
    ):
        evaluator = TrialEvaluator(recipe, launcher, lambda _phase: None)
        outcome = evaluator.evaluate(study, config, Path(folder))
    words = f"{format_bytes(budget)}, half of the estimate of {format_bytes(estimated)}: {outcome}"
    is_right = isinstance(outcome, Failed) and outcome.kind is OUT_OF_MEMORY
    if not is_right:
        found.doubts.append(f"training with {words[:200]}, expected out_of_memory")
    given = outcome.kind.value if isinstance(outcome, Failed) else outcome.status
    message = outcome.message if isinstance(outcome, Failed) else ""
    case = "train with half of the memory"
    return words[:300], (case, OUT_OF_MEMORY.value, given, "yes" if is_right else "NO", message)


START_LIMIT_S = {True: 40.0, False: 120.0}
END_LIMIT_S = 15.0
TRAINS = b'"warmup"'
SPARE_BYTES = 64 * MIB
"""By how much the memory in use on a GPU may differ before and after: others may use it too."""


def kill(place: Place) -> Findings:
    """Kill a search with SIGKILL while its ranks train, and look for what is left of it."""
    found = Findings(lead="kill -9 of a search in the middle of a trial.")
    mark = ("GPU_PROOF", uuid4().hex)
    before, apps_before = (memory_in_use(), processes_on_gpus()) if place.has_gpu else ((), ())
    search = subprocess.Popen(
        (
            *(sys.executable, "-P", "-m", "search", "run", "-c", study_file(place)),
            *("--strategy", "offline", "--trials", "2", "--store", place.folder("killed")),
        ),
        env={**trial_environment(), mark[0]: mark[1]},
    )
    text = "=".join(mark)
    started = _waited(lambda: _is_training(place, text), START_LIMIT_S[place.has_gpu])
    at_work = len(marked_processes(text))
    apps_at_work = processes_on_gpus() if place.has_gpu else ()
    os.kill(search.pid, signal.SIGKILL)
    search.wait()
    killed_s = time.monotonic()
    gone = _waited(lambda: not marked_processes(text), END_LIMIT_S)
    took_s = time.monotonic() - killed_s
    left = marked_processes(text)
    found.data = {"began": started, "processes": at_work, "left": sorted(left), "took_s": took_s}
    if not started:
        found.doubts.append("the search did not come to train, and was killed before that")
    words = f"all gone after {took_s:.1f} s" if gone else f"{len(left)} are left"
    found.facts.append(("processes", f"{at_work} when it was killed; {words}"))
    if left:
        found.doubts.append(f"processes are left: {sorted(left)}")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    if place.has_gpu:
        check_gpus(found, before, apps_before, apps_at_work)
    else:
        found.lacks.append("memory and processes that are left on a GPU")
    return found


def memory_in_use() -> tuple[int, ...]:
    """Bytes in use on each GPU, by its driver."""
    lines = nvidia_smi("--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return tuple(int(line) * MIB for line in lines if line.strip().isdecimal())


def processes_on_gpus() -> tuple[str, ...]:
    """A line for each process on a GPU, by its driver, which shows none in some containers."""
    lines = nvidia_smi("--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader")
    return tuple(filter(None, map(str.strip, lines)))


def _taken_since(before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(now - then for then, now in zip(before, memory_in_use(), strict=True))


def _is_training(place: Place, mark: str) -> bool:
    beats = place.folder("killed").rglob(RankFile.PROGRESS.of(0))
    return bool(marked_processes(mark)) and any(TRAINS in beat.read_bytes() for beat in beats)


def check_gpus(
    found: Findings,
    before: tuple[int, ...],
    apps_before: Sequence[str],
    apps_at_work: Sequence[str],
) -> None:
    """Compare memory in use and processes on the GPUs with those before the search."""
    freed = _waited(lambda: all(more <= SPARE_BYTES for more in _taken_since(before)), END_LIMIT_S)
    after, apps_after = memory_in_use(), processes_on_gpus()
    words = ", ".join(
        f"{format_bytes(now)} (before: {format_bytes(then)})"
        for then, now in zip(before, after, strict=True)
    )
    found.facts.append(("memory in use on the GPU", words))
    if not freed:
        found.doubts.append(f"memory on the GPU was not given back: {words}")
    if len(apps_at_work) <= len(apps_before):
        found.lacks.append("processes on the GPU, of which its driver shows none in this container")
        return
    counts = f"{len(apps_before)} before, {len(apps_at_work)} at work, {len(apps_after)} after"
    found.facts.append(("processes on the GPU, by its driver", counts))
    if len(apps_after) > len(apps_before):
        found.doubts.append(f"processes are left on the GPU: {'; '.join(apps_after)}")


def _waited(holds: Callable[[], bool], limit_s: float) -> bool:
    """Whether something came to hold within the limit."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(0.1)
    return holds()
