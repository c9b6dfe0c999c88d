"""Policies as a language model writes them, which must run unchanged with what they import."""

import textwrap

import pytest

from policies.sandbox import run_policy

WORKLOAD = {"global_batch": 64, "layers": 32, "hidden": 4096, "phase": "training", "experts": None}
ENVIRONMENT = {"accelerators": 8, "nodes": 2, "memory_bytes": 80 << 30, "links": {"nvlink": 4.5e11}}

DATACLASS = """
from __future__ import annotations
from dataclasses import asdict, dataclass, field, replace

@dataclass(frozen=True, order=True, slots=True)
class Candidate:
    tp: int = 1
    pp: int = 1
    notes: list[str] = field(default_factory=list, compare=False, repr=False)

    @property
    def world(self) -> int:
        return self.tp * self.pp

def generate_config(workload: dict, environment: dict) -> dict:
    best = max(Candidate(tp=t, pp=environment["accelerators"] // t) for t in (1, 2, 4))
    assert best.world == environment["accelerators"]
    return {k: v for k, v in asdict(replace(best, notes=[])).items() if k != "notes"}
"""
FALLBACKS = """
try:
    import numpy as np
except ImportError:
    np = None

def generate_config(workload, environment):
    try:
        experts = int(workload["experts"])
    except (KeyError, TypeError, ValueError) as error:
        experts = 1
        print(f"no experts: {error!r}")
    finally:
        layers = workload["layers"]
    return {"ep": experts, "vectorised": np is not None, "layers": layers}
"""
GENERATORS = """
from collections import Counter, defaultdict, deque, namedtuple
from functools import lru_cache, partial, reduce
from heapq import nsmallest
from operator import mul

Point = namedtuple("Point", "tp pp")

@lru_cache(maxsize=None)
def divisors(n):
    return tuple(d for d in range(1, n + 1) if n % d == 0)

def points(world):
    for tp in divisors(world):
        yield Point(tp=tp, pp=world // tp)

def generate_config(workload, environment):
    best = nsmallest(1, points(environment["accelerators"]), key=lambda p: abs(p.tp - p.pp))[0]
    counts = Counter(divisors(12))
    groups = defaultdict(deque)
    groups["all"].extend(counts)
    scale = partial(reduce, mul)
    return {**best._asdict(), "product": scale(groups["all"])}
"""
TEXT = """
import copy, json, re, string, textwrap

TABLE = json.loads('{"training": {"buckets_mib": 25}, "inference": {"buckets_mib": 8}}')
VARIABLE = string.Template("NCCL_$name")

def generate_config(workload, environment):
    settings = copy.deepcopy(TABLE[workload["phase"]])
    match_ = re.search(r"(?P<kind>nv)link", " ".join(environment["links"]))
    settings[VARIABLE.substitute(name="ALGO")] = "Tree" if match_ and match_["kind"] else "Ring"
    settings["note"] = textwrap.shorten("a long note on why " * 9, width=30, placeholder="...")
    return settings
"""
CONTEXTS = """
from contextlib import contextmanager, suppress
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

class ConstraintError(ValueError):
    def __init__(self, reason: str, *, knob: str) -> None:
        super().__init__(reason)
        self.knob = knob

@contextmanager
def attempt(log):
    try:
        yield log
    except ConstraintError as error:
        log.append(error.knob)

def generate_config(workload, environment):
    log = []
    with attempt(log):
        raise ConstraintError("too wide", knob="tp")
    with suppress(KeyError):
        environment["missing"]
    state = SimpleNamespace(share=Fraction(1, environment["nodes"]), rate=Decimal("0.10"))
    return {"rejected": ",".join(log), "share": float(state.share), "rate": float(state.rate)}
"""


@pytest.mark.parametrize(
    ("source", "config"),
    [
        (DATACLASS, {"tp": 4, "pp": 2}),
        (FALLBACKS, {"ep": 1, "vectorised": False, "layers": 32}),
        (GENERATORS, {"tp": 2, "pp": 4, "product": 1728}),
        (TEXT, {"buckets_mib": 25, "NCCL_ALGO": "Tree", "note": "a long note on why a long..."}),
        (CONTEXTS, {"rejected": "tp", "share": 0.5, "rate": 0.1}),
    ],
)
def test_an_ordinary_policy_runs_unchanged(source, config):
    assert run_policy(textwrap.dedent(source), WORKLOAD, ENVIRONMENT) == config
