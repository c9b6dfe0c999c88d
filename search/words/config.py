"""A configuration in words: as command-line arguments, or as what tells it from another."""

import shlex
from collections.abc import Sequence

from records.study import Value
from records.trial import Config


def flags(config: Config) -> str:
    """The settings as command-line arguments."""
    return " ".join(f"--{knob.replace('_', '-')}={spelled(config[knob])}" for knob in config)


def spelled(value: Value) -> str:
    """A setting as shells and most programs take it."""
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def changed_words(config: Config, against: Config) -> str:
    """What a configuration sets otherwise: `pp=2 tp=4 without schedule`."""
    return " ".join(
        f"{knob}={config.values[knob]}" if knob in config.values else f"without {knob}"
        for knob in differing(against, config)
    )


def differing(one: Config, other: Config) -> Sequence[str]:
    """Knobs that are set differently, or only in one of the two, in alphabetical order."""
    knobs = sorted({*one.values, *other.values})
    return [knob for knob in knobs if one.values.get(knob) != other.values.get(knob)]


def difference(config: Config, base: Config) -> str:
    """The settings that are not those of `base`; `-knob` for one that only `base` has."""
    changed = [
        f"{knob}={value}"
        for knob, value in config.values.items()
        if knob not in base.values or base[knob] != value
    ]
    dropped = [f"-{knob}" for knob in base if knob not in config.values]
    return " ".join([*changed, *dropped]) or "the same"
