"""What the estimate says of configurations, in words and as JSON; nothing here was measured."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from evaluator.recipes.catalog import recipe_of
from policies.space import Space
from records.errors import StudyError
from records.rule import told
from records.study import Study, Value
from records.trial import Config
from search.contexts import estimate
from search.tables import Column, page_cells, table_lines
from search.words.quantities import duration, share

CAVEAT = "an estimate from sizes alone, no result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A configuration, the seconds of its step by what takes them, and what follows from it."""

    config: Config
    parts_s: Mapping[str, float]
    derived: Mapping[str, Value] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        """All parts together."""
        return sum(self.parts_s.values())

    @property
    def document(self) -> Mapping[str, object]:
        """The same for programs, which shall not take it for a result either."""
        return {
            "estimate": CAVEAT,
            "config": dict(self.config.values),
            "step_s": self.step_s,
            "parts_s": dict(self.parts_s),
            **self.derived,
        }


def estimated(study: Study, space: Space, config: Config) -> Estimated:
    """The estimate of one configuration; raises `StudyError` where nothing can be said."""
    parts = estimate(recipe_of(study), study, config)
    if parts is None:
        raise StudyError(
            "nothing can be estimated: neither sizes nor knobs tell enough; give [workload] model "
            "or its sizes (layer_count, hidden_size, head_count, ffn_size, vocab_size), and call "
            "degrees tp, pp, dp, cp, ep and the batch of a pass micro_batch"
        )
    return Estimated(config=config, parts_s=parts, derived=space.derived(config))


def cheapest(study: Study, space: Space, count: int) -> Sequence[Estimated]:
    """The configurations that the estimate alone ranks best, the cheapest first."""
    every = [estimated(study, space, config) for config in space.feasible]
    return sorted(every, key=lambda each: each.step_s)[:count]


def parts_lines(one: Estimated) -> Iterator[str]:
    """The parts of one configuration, the largest first, and the memory that it may take."""
    yield f"{duration(one.step_s)} a step of {one.config}: {CAVEAT}"
    parts = sorted(one.parts_s.items(), key=lambda part: -part[1])
    shown = [(name, seconds) for name, seconds in parts if seconds]
    yield from table_lines(
        [
            Column(heading="part", cells=[name for name, _ in shown]),
            Column(heading="time", cells=[duration(s) for _, s in shown], align="right"),
            Column(heading="share", cells=[share(s / one.step_s) for _, s in shown], align="right"),
        ],
        page_cells(),
    )
    yield from (f"{name}: {told(name, value)}" for name, value in one.derived.items())


def list_lines(best: Sequence[Estimated], space: Space) -> Iterator[str]:
    """Configurations in the order of their estimates."""
    yield f"the first {len(best)} of {len(space.feasible)} configurations by {CAVEAT}"
    yield from table_lines(
        [
            Column(heading="step", cells=[duration(each.step_s) for each in best], align="right"),
            Column(heading="configuration", cells=[str(each.config) for each in best]),
        ],
        page_cells(),
    )


def list_document(best: Sequence[Estimated], space: Space) -> str:
    """The same for programs."""
    return json.dumps(
        {
            "estimate": CAVEAT,
            "feasible": len(space.feasible),
            "configurations": [each.document for each in best],
        }
    )
