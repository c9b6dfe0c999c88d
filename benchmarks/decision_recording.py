"""Takes rounds of launches for `decision_quality.py` and writes them to a file.

A round launches four jobs in a random order: the same training twice (A and A2), and slowed by
3 and 10 % of each step (B3 and B10). The file has a first line about study and machine, then one
line a launch, appended when its round is done; what was stopped goes on with the next round.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import torch
from decision_rounds import JOBS, Kind

from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_environment
from evaluator.ports import Job
from evaluator.recipes.builtin import BuiltinRecipe
from records.machine import Conditions
from records.study import Launch, Measure, Study
from records.trial import Config, Measured, Outcome
from search.loop.races import MOST_TURNS
from search.study.study_file import builtin_defaults, builtin_study

HERE = Path(__file__).parent
ENTRY_MODULE = "slowed_training"
SLOWDOWN = "slowed_by_percent"
RANKS = 2
STEPS = MOST_TURNS


class Slowable(BuiltinRecipe):
    """The built-in recipe with one more knob: by how much each step is drawn out."""

    def job(self, study: Study, config: Config) -> Job:
        """Give the job with the entry that is slowed."""
        settings = dict(config.values)
        percent = settings.pop(SLOWDOWN)
        job = super().job(study, Config(settings))
        entry = {"entry": f"{ENTRY_MODULE}:by_{percent}_percent"}
        document = json.loads(job.files["job.json"]) | entry
        modules = (ENTRY_MODULE, *job.modules)
        return replace(job, files={"job.json": json.dumps(document)}, modules=modules)


def record(out: Path, rounds: int, kind: Kind, seed: int) -> None:
    """Take rounds until the file has as many of this kind, telling how long it will be."""
    study = small_study()
    first = next_round(out, header(study), kind)
    with launching() as evaluator:
        started = time.monotonic()
        for number in range(first, rounds):
            each_s = (time.monotonic() - started) / (number - first) if number > first else None
            show_progress(number, rounds, each_s)
            rows = one_round(evaluator, study, kind, number, seed)
            with out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    print(file=sys.stderr)


def small_study() -> Study:
    """Two gloo ranks on the CPU, with steps of about 0.1 s, as many in turns as without."""
    here = replace(local_environment(), device="cpu", world_size=RANKS, ranks_per_node=RANKS)
    workload = replace(builtin_defaults("cpu").workload, global_batch=8)
    measure = Measure(warmup_steps=3, timed_steps=STEPS, max_timed_steps=STEPS, profiled_steps=0)
    return replace(builtin_study(here), workload=workload, measure=measure, launch=Launch())


def header(study: Study) -> dict[str, object]:
    workload = asdict(study.workload)
    return {
        "workload": {name: value for name, value in workload.items() if value is not None},
        "machine": study.environment.accelerator,
        "ranks": study.environment.world_size,
        "torch": torch.__version__,
    }


def next_round(out: Path, about: Mapping[str, object], kind: Kind) -> int:
    """Number of the round that the file lacks, which is made if it is not there."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(about) + "\n", encoding="utf-8")
        return 0
    told = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    if told[0] != about:
        raise SystemExit(f"{out} was recorded elsewhere or otherwise; give another file")
    return 1 + max((row["round"] for row in told[1:] if row["kind"] == kind), default=-1)


@contextmanager
def launching(niceness: int = 0) -> Iterator[TrialEvaluator]:
    path = f"{Path(sys.executable).parent}:{os.defpath}"

    def launcher() -> LocalLauncher:
        return LocalLauncher({"PATH": path, "PYTHONPATH": f"{HERE}"}, 1, niceness=niceness)

    with (
        closing(launcher()) as first,
        closing(TrialEvaluator(Slowable(), first, lambda _phase: None, launcher)) as evaluator,
    ):
        yield evaluator


def show_progress(done: int, wanted: int, each_s: float | None) -> None:
    left = "" if each_s is None else f"{each_s * (wanted - done) / 60:.1f} min left"
    print(f"\rround {done + 1} of {wanted}  {left:<16}", end="", file=sys.stderr, flush=True)


def one_round(
    evaluator: TrialEvaluator, study: Study, kind: Kind, number: int, seed: int
) -> list[dict[str, object]]:
    """Launch every job once, in an order of this round's own; a row for each."""
    names = list(JOBS)
    Random(f"{seed} {kind} {number}").shuffle(names)
    configs = [
        Config({"dp_replicate": RANKS, "micro_batch": 4, SLOWDOWN: JOBS[name]}) for name in names
    ]
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in names]
        outcomes: Sequence[Outcome]
        if kind == "together":
            outcomes = evaluator.evaluate_together(study, configs, folders, seed=seed + number)
        else:
            outcomes = [
                evaluator.evaluate(study, config, folder)
                for config, folder in zip(configs, folders, strict=True)
            ]
    about = {"kind": kind, "round": number, "round_started_at": started_at}
    return [
        about | {"position": position, "which": name, SLOWDOWN: JOBS[name]} | told_of(outcome)
        for position, (name, outcome) in enumerate(zip(names, outcomes, strict=True))
    ]


def told_of(outcome: Outcome) -> dict[str, object]:
    if not isinstance(outcome, Measured):
        return {"status": outcome.status, "message": str(outcome)}
    taken = outcome.measurement
    steps = taken.slowest_rank_s
    told: dict[str, object] = {
        "status": outcome.status,
        "step_times_s": [round(step, 6) for step in steps],
        "mean_step_s": round(sum(steps) / len(steps), 6),
        "wall_s": round(taken.wall_s or 0.0, 3),
        "conditions": conditions_row(taken.conditions) if taken.conditions else None,
    }
    return told | ({"turn_steps": taken.turn_steps} if taken.turn_steps else {})


def conditions_row(conditions: Conditions) -> dict[str, float | None]:
    told = asdict(conditions)
    del told["gpus"]
    return {name: None if value is None else round(value, 3) for name, value in told.items()}
