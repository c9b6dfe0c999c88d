"""The knobs of a mix of messages, and what they mean to NCCL and to Open MPI.

`collectives.toml` lists them, with rules about what the libraries cannot do.
"""

from collections.abc import Iterator, Mapping
from functools import cache

import msgspec

from evaluator.recipes.knobs import LIBRARY, Knob, Rules, list_literal, read_table
from records.study import Value

NCCL = "comm_adapter != 'mpi' and backend in ['nccl', 'ncclx']"
MPI = "comm_adapter == 'mpi'"
TUNED = f"{MPI} and in_flight == 1 and ompi_coll in ['{LIBRARY}', 'tuned']"
"""Calls that do not block are made by another component, which has no choice of algorithms."""
IN_NETWORK = ("CollnetDirect", "CollnetChain")
PREFIX = "OMPI_MCA_"
FIRST = "100"
"""A priority above those that components have by themselves."""


class Algorithms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How Open MPI can do a collective: `choices` in the order of its numbers.

    Those that are `segmented` cut a message into segments.
    """

    collective: str
    choices: tuple[str, ...]
    segmented: tuple[str, ...] = ()


class CollectivesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `collectives.toml` holds."""

    setup: dict[str, Knob]
    nccl: dict[str, Knob]
    open_mpi: dict[str, Knob]
    open_mpi_algorithms: dict[str, Algorithms]
    rules: Rules


@cache
def table() -> CollectivesTable:
    """Return the table as it is written."""
    return read_table("collectives.toml", CollectivesTable)


@cache
def library_knobs() -> Mapping[str, Knob]:
    """Every knob by name, those first that the conditions of others name."""
    first, *others = table().open_mpi.items()
    return {
        **table().setup,
        **{name: _of_nccl(name, knob) for name, knob in table().nccl.items()},
        **{
            name: _of_open_mpi(knob)
            for name, knob in (first, *_algorithm_knobs(), *_segment_knobs(), *others)
        },
    }


def nccl_variables(settings: Mapping[str, Value]) -> dict[str, str]:
    """Return the variables of NCCL for a live value of every knob; none for what is left to it."""
    variables = {
        name.upper(): str(int(value) if isinstance(value, bool) else value)
        for name, knob in table().nccl.items()
        if (value := settings[name]) != knob.default
    }
    if settings["nccl_algo"] in IN_NETWORK:
        variables["NCCL_COLLNET_ENABLE"] = "1"
    return variables


def open_mpi_variables(settings: Mapping[str, Value], major_version: int) -> dict[str, str]:
    """Return variables for a live value of every knob; none for what is left to Open MPI."""
    parameters = {
        **dict(_collective_parameters(settings)),
        **dict(_transport_parameters(settings, is_modern=major_version >= 5)),
    }
    return {PREFIX + name: value for name, value in parameters.items()}


def open_mpi_ways(settings: Mapping[str, Value]) -> Mapping[str, tuple[str, int]]:
    """Algorithm, and bytes of its segments or 0, of each collective that has one."""
    return {
        algorithms.collective: (chosen, int(settings.get(f"ompi_{name}_segment_bytes", 0)))
        for name, algorithms in table().open_mpi_algorithms.items()
        if (chosen := str(settings[f"ompi_{name}_algorithm"])) != LIBRARY
    }


def _of_nccl(name: str, knob: Knob) -> Knob:
    return msgspec.structs.replace(
        knob,
        when=" and ".join(filter(None, (NCCL, knob.when))),
        variables=(name.upper(), *knob.variables),
    )


def _of_open_mpi(knob: Knob) -> Knob:
    when = knob.when or ""
    return msgspec.structs.replace(
        knob,
        when=when if when.startswith(MPI) else " and ".join(filter(None, (MPI, when))),
        variables=tuple(PREFIX + name for name in knob.variables),
    )


def _algorithm_knobs() -> Iterator[tuple[str, Knob]]:
    for name, algorithms in table().open_mpi_algorithms.items():
        rules = ("coll_tuned_use_dynamic_rules", "coll_tuned_dynamic_rules_filename")
        yield (
            f"ompi_{name}_algorithm",
            Knob(
                description=f"how Open MPI does each {algorithms.collective}",
                default=LIBRARY,
                choices=algorithms.choices,
                when=TUNED,
                of=(algorithms.collective,),
                variables=(f"coll_tuned_{name}_algorithm", *rules, "coll", "coll_*_priority"),
            ),
        )


def _segment_knobs() -> Iterator[tuple[str, Knob]]:
    for name, algorithms in table().open_mpi_algorithms.items():
        segmented = list_literal(algorithms.segmented)
        if algorithms.segmented:
            yield (
                f"ompi_{name}_segment_bytes",
                Knob(
                    description="bytes of the parts that a message is passed on in; 0: it is "
                    "passed on whole",
                    choices=(16 << 10, 64 << 10, 256 << 10, 1 << 20),
                    least=0,
                    when=f"{TUNED} and ompi_{name}_algorithm in {segmented}",
                    of=(algorithms.collective,),
                    variables=(f"coll_tuned_{name}_algorithm_segmentsize",),
                ),
            )


def _collective_parameters(settings: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    first = settings["ompi_coll"]
    chosen = {
        name: algorithms.choices.index(str(settings[f"ompi_{name}_algorithm"]))
        for name, algorithms in table().open_mpi_algorithms.items()
    }
    if any(chosen.values()):
        first = "tuned"
        yield "coll_tuned_use_dynamic_rules", "1"
    if first != LIBRARY:
        yield f"coll_{first}_priority", FIRST
    for name, number in chosen.items():
        if number:
            yield f"coll_tuned_{name}_algorithm", str(number)
    for name in chosen:
        if segment_bytes := settings.get(f"ompi_{name}_segment_bytes"):
            yield f"coll_tuned_{name}_algorithm_segmentsize", str(segment_bytes)


def _transport_parameters(
    settings: Mapping[str, Value], *, is_modern: bool
) -> Iterator[tuple[str, str]]:
    """Of the layer that `pml` ob1 uses, which is therefore asked for where one is set."""
    carrier = "tcp" if settings["ompi_btl"] == "tcp" else "sm" if is_modern else "vader"
    copies, limit = settings["ompi_single_copy"], settings["ompi_eager_limit"]
    if (settings["ompi_btl"], copies, limit) != (LIBRARY, LIBRARY, 0):
        yield "pml", "ob1"
    if settings["ompi_btl"] != LIBRARY:
        yield "btl", f"self,{carrier}"
    if limit:
        yield f"btl_{carrier}_eager_limit", str(limit)
    if copies != LIBRARY and is_modern:
        yield "smsc", "cma" if copies == "cma" else "^cma,knem,xpmem"
    elif copies != LIBRARY:
        yield "btl_vader_single_copy_mechanism", str(copies)
