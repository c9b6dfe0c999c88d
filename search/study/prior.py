"""What another tool predicts of a study's configurations before any launch, as its prior.

Recorded with the study, so that a search goes on and is replayed without the tool.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from evaluator.recipes.frameworks.aiconfigurator import (
    KNOBS,
    PARTS,
    TIMEOUT_S,
    ask,
    model_of,
    point_of,
    system_of,
)
from evaluator.recipes.frameworks.launch_line import LaunchLine
from policies.space import Space
from records.errors import StudyError
from records.study import Prior, Study
from search import settings
from search.study.spaces import space_of

SERVERS = ("vllm", "sglang")
MOST_POINTS = 128
_INSTEAD = "estimates are from sizes alone"


def with_prior(study: Study, notice: Callable[[str], None]) -> Study:
    """Return a completed study with aiconfigurator's prior, where it knows the server and the GPUs.

    Without it the study has none; `notice` is given what a person should know of that.
    """
    study = replace(study, prior=None)
    is_server = study.launch.recipe in SERVERS and study.environment.device == "cuda"
    if study.command is None or study.contexts or not is_server:
        return study
    try:
        return replace(study, prior=_prior(study, space_of(study), notice))
    except StudyError as error:
        notice(f"no prior of aiconfigurator: {error}; {_INSTEAD}")
        return study


def _prior(study: Study, space: Space, notice: Callable[[str], None]) -> Prior | None:
    """Ask for every setting that its estimate depends on; raises `StudyError` where it has none."""
    command = study.command.run if study.command else ()
    model, system = model_of(command), system_of(study.environment)
    if system is None:
        raise StudyError(f"it has no data of {study.environment.accelerator}")
    if model is None:
        raise StudyError("the command names no model")
    knobs = tuple(name for name in KNOBS if name in study.space.defaults)
    blank = Prior(source="", accelerator="", knobs=knobs, parts=PARTS, seconds={})
    servers = {
        blank.key(values): point_of(study, values) for values in map(space.settings, space.feasible)
    }
    points = list(dict.fromkeys(point for point, _ in servers.values()))
    if len(points) > MOST_POINTS:
        raise StudyError(f"{len(points)} settings are more than the {MOST_POINTS} it is asked of")
    notice(f"asking aiconfigurator of {len(points)} settings, at most {TIMEOUT_S:.0f} s")
    started_s = time.monotonic()
    answers = ask(list(_pythons(study)), study, model, points, settings.trial_environment())
    if answers.absent:
        notice(f"{_INSTEAD}; `pip install aiconfigurator` adds those of measured kernels")
        return None
    found = dict(zip(points, answers.points, strict=True))
    decoded = (study.workload.output_length or 1) - 1
    seconds = {
        key: tuple(waves * time_s for time_s in found[point].parts_s(decoded))
        for key, (point, waves) in servers.items()
    }
    source = (
        f"aiconfigurator {answers.version} ({study.launch.recipe} {answers.backend_version} on "
        f"{system})"
    )
    notice(
        f"{source} estimated them in {time.monotonic() - started_s:.0f} s; none is a measurement"
    )
    return replace(blank, source=source, accelerator=study.environment.accelerator, seconds=seconds)


def _pythons(study: Study) -> Iterator[Path]:
    """The Python of the job, which may have what ours has not."""
    path = settings.trial_environment().get("PATH")
    try:
        yield LaunchLine.of(
            study.command.run if study.command else (), Path(), search_path=path
        ).python
    except StudyError:
        return
