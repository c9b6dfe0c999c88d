"""DeepSpeed: a configuration in JSON, changed for each trial as a copy in the folder of its job."""

import json
from collections.abc import Iterable, Mapping, Sequence

from evaluator.recipes.frameworks.framework import FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from evaluator.recipes.knobs import KnobTable
from records.errors import StudyError
from records.expression import facts, parse
from records.study import Study, Value
from records.trial import Config

FILE = "ds_config.json"


class DeepSpeed(FrameworkRecipe):
    """Starts a script that is given its DeepSpeed configuration as a file."""

    name = "deepspeed"

    def study(self, line: LaunchLine, base: Study, answer: Answer | None = None) -> Study:
        """Return the search around a launch line; its configuration becomes part of the study."""
        if not answer or not answer.parsed or "--deepspeed_config" not in answer.parsed[0].values:
            raise StudyError(
                "the configuration of DeepSpeed is in a file that your launch line names; add it: "
                "--baseline train.sh, or the command itself after --"
            )
        return super().study(line, base, answer)

    def flags(self, study: Study, config: Config) -> tuple[str, ...]:  # noqa: ARG002 - the same for all
        """Return the argument that names the configuration of the trial, where its knobs are."""
        return (f"--deepspeed_config={FILE}",)

    def knob_words(self, study: Study, name: str, settings: Mapping[str, Value]) -> Sequence[str]:
        """Return a knob as its path in the configuration."""
        return () if name == "settings" else super().knob_words(study, name, settings)

    def files(self, study: Study, config: Config) -> Mapping[str, str]:
        """Return the configuration of the trial."""
        table = KnobTable(study, self.knobs(study))
        settings = table.live({**study.space.defaults, **config.values})
        micro_batch = int(settings["micro_batch"])
        ranks = self.rank_count(study, config)
        sizes = {
            "train_batch_size": study.workload.global_batch,
            "train_micro_batch_size_per_gpu": micro_batch,
            "gradient_accumulation_steps": study.workload.global_batch // (micro_batch * ranks),
        }
        document = json.loads(str(settings["settings"]))
        changed = changed_paths(self, study, settings)
        return {FILE: json.dumps(with_paths({**document, **sizes}, changed), indent=1)}

    def meaning(self, study: Study, settings: Mapping[str, Value]) -> Mapping[str, Value]:
        """Return the degrees of data parallelism that a ZeRO stage amounts to."""
        degree = "dp_shard" if settings["zero_stage"] == 3 else "dp_replicate"
        return {**settings, degree: study.environment.world_size}


def changed_paths(
    recipe: FrameworkRecipe, study: Study, settings: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the paths of a JSON configuration that live knobs set, with their values."""
    searched = {dimension.name for dimension in study.space.dimensions}
    names = {**facts(study.workload, study.environment), **settings}
    return {
        knob.flag: settings[name]
        for name, knob in recipe.table.knobs.items()
        if "." in knob.flag
        and (knob.when is None or parse(knob.when).holds(names))
        and (name in searched or settings[name] != knob.default)
    }


def with_paths(document: dict[str, object], paths: Mapping[str, Value]) -> dict[str, object]:
    """Return a configuration in which every path `a.b` has its value."""
    found = document
    for path, value in paths.items():
        found = _with_path(found, path.split("."), value)
    return found


def _with_path(table: object, path: Iterable[str], value: Value) -> dict[str, object]:
    key, *rest = path
    own = table if isinstance(table, dict) else {}
    return {**own, key: _with_path(own.get(key), rest, value) if rest else value}
