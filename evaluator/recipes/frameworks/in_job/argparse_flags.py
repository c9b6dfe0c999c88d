"""The flags of an argparse parser, as `flags.py` records them."""

import argparse
import json


def recorded_flags(parser: argparse.ArgumentParser) -> dict[str, object]:
    """Return every flag of a parser by its first long spelling."""
    found: dict[str, object] = {}
    for action in parser._actions:
        names = sorted(action.option_strings, key=lambda name: not name.startswith("--"))
        if names and not isinstance(action, argparse._HelpAction):
            found[names[0]] = _flag(action, names[1:])
    return found


def _flag(action: argparse.Action, others: "list[str]") -> "dict[str, object]":
    flag: dict[str, object] = {}
    if action.nargs == 0:
        flag["takes"] = "switch"
    elif action.nargs == "?":
        flag["takes"] = "bool"
    elif action.nargs is not None:
        flag["takes"] = "many"
    elif action.type in {int, float}:
        flag["takes"] = action.type.__name__
    if isinstance(action.default, (bool, int, float, str)):
        flag["default"] = action.default
    if action.choices is not None:
        is_set = isinstance(action.choices, (set, frozenset))
        flag["choices"] = list(map(plain, sorted(action.choices) if is_set else action.choices))
    negative = next((name for name in others if name.startswith("--no-")), None)
    if negative is not None and isinstance(action, argparse.BooleanOptionalAction):
        flag["negative"] = negative
        others = [name for name in others if name != negative]
    if others:
        flag["also"] = others
    return flag


def plain(value: object) -> object:
    """Return a value as JSON has it, the text of one that JSON has no type for."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(getattr(value, "value", value))
    return value
