"""The configurations that a policy gives in several contexts, as one: `tp`, and `big.tp` elsewhere.

So a trial has one configuration however many contexts its study has.
"""

from collections.abc import Callable, Mapping, Set
from functools import cached_property

from policies.space import Space
from records.errors import StudyError
from records.study import Study, Value
from records.trial import Config

SEPARATOR = "."


def joined(own: Config, others: Mapping[str, Config]) -> Config:
    """One configuration: the study's own as it is, other knobs with the names of their contexts."""
    elsewhere = {
        f"{name}{SEPARATOR}{knob}": value
        for name, config in others.items()
        for knob, value in config.values.items()
    }
    return Config({**own.values, **elsewhere})


def own_part(config: Config) -> Config:
    """What a joined configuration is in the study's own context."""
    return Config({knob: value for knob, value in config.values.items() if SEPARATOR not in knob})


def part_of(config: Config, context: str) -> Config:
    """What a joined configuration is in one of the other contexts."""
    prefix = f"{context}{SEPARATOR}"
    found = config.values.items()
    return Config({k.removeprefix(prefix): value for k, value in found if k.startswith(prefix)})


class JoinedSpace(Space):
    """The study's own space, of which only what can be set everywhere is feasible, joined.

    A policy that decides by its arguments can do more than that: what it gives is checked against
    the space of each context. `others` are those spaces, `held_out` the names of contexts whose
    part is not in the configuration.
    """

    def __init__(
        self,
        study: Study,
        derived: Mapping[str, Callable[[Mapping[str, Value]], Value]],
        others: Mapping[str, Space],
        held_out: Set[str],
    ) -> None:
        own = study.space, study.workload, study.usable_environment, derived
        super().__init__(*own)
        self._own = Space(*own)
        self._others = others
        self._held_out = held_out
        for knob in self.knobs:
            if SEPARATOR in knob.name:
                raise StudyError(
                    f"[space] knob {knob.name!r} has a {SEPARATOR!r} in its name, which stands "
                    "after the name of a context; call it something else"
                )

    @cached_property
    def feasible(self) -> tuple[Config, ...]:
        """Every configuration of the study that every context takes, joined with what it is there.

        A knob that has no effect in a context is not in its part.
        """
        everywhere = map(self._everywhere, self._own.feasible)
        return tuple(config for config in everywhere if config is not None)

    @property
    def is_listable(self) -> bool:
        """Give False: policies that decide by their arguments can do more than what is feasible."""
        return False

    def obstacles(self) -> tuple[str, ...]:
        """Why nothing is feasible: in the study's own context, in another, or in all together."""
        if self._own.feasible:
            empty = [name for name, space in self._others.items() if not space.feasible]
            return tuple(f"nothing is feasible in context {name}" for name in empty) or (
                "what is the same everywhere breaks a constraint somewhere; only a policy that "
                "decides by its arguments could do, which needs --strategy llm",
            )
        return self._own.obstacles()

    def settings(self, config: Config) -> Mapping[str, Value]:
        """The study's own part, with the defaults of what it leaves out."""
        return super().settings(own_part(config))

    def answer(self, config: Config) -> Mapping[str, Value]:
        """What a policy has to return in every context to get this configuration."""
        return own_part(config).values

    def _everywhere(self, config: Config) -> Config | None:
        parts = {name: space.check(config.values) for name, space in self._others.items()}
        found = {name: part for name, part in parts.items() if isinstance(part, Config)}
        if len(found) < len(parts):
            return None
        return joined(config, {n: part for n, part in found.items() if n not in self._held_out})
