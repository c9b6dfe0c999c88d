"""Policies as a language model writes them, which must run unchanged."""

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
ENUM = """
from enum import Enum, auto

class Algorithm(Enum):
    RING = "ring"
    TREE = "tree"

class Level(Enum):
    LOW = auto()
    HIGH = auto()

def generate_config(workload, environment):
    level = Level.HIGH if environment["nodes"] > 1 else Level.LOW
    chosen = {Level.LOW: Algorithm.RING, Level.HIGH: Algorithm.TREE}[level]
    return {"algorithm": chosen.value, "level": level.name.lower()}
"""
PRODUCT = """
import itertools
import math

def generate_config(workload, environment):
    world = environment["accelerators"]
    def cost(tp, pp, dp):
        return tp * 1.5 + math.log2(pp + 1) + 0.1 * dp
    choices = [
        (tp, pp, dp)
        for tp, pp, dp in itertools.product((1, 2, 4, 8), repeat=3)
        if tp * pp * dp == world and workload["global_batch"] % dp == 0
    ]
    tp, pp, dp = min(choices, key=lambda c: (cost(*c), c))
    return {"tp": tp, "pp": pp, "dp": dp}
"""
CLASSES = """
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Optional, Protocol, TypedDict

class Score(NamedTuple):
    value: float
    name: str

class Model(ABC):
    registry: ClassVar[list[type["Model"]]] = []
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Model.registry.append(cls)
    @abstractmethod
    def score(self, workload: dict[str, Any]) -> Score: ...

class Small(Model):
    def score(self, workload):
        return Score(1.0, "small")

class Large(Model):
    def score(self, workload):
        return Score(workload["layers"] / 16, "large")

def generate_config(workload: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
    best: Optional[Score] = max(model().score(workload) for model in Model.registry)
    return {"model": best.name, "score": best.value}
"""
WALRUS_AND_MATCH = """
def generate_config(workload, environment):
    if (nodes := environment.get("nodes", 1)) > 1:
        strategy = "hybrid"
    else:
        strategy = "full"
    match workload:
        case {"phase": "training", "layers": int(layers)} if layers > 16:
            recompute = "selective"
        case {"phase": "inference" | "decode"}:
            recompute = "none"
        case _:
            recompute = "full"
    return {"strategy": strategy, "recompute": recompute, "nodes": nodes}
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
MEMORY = """
GIB = 1 << 30

def generate_config(workload, environment):
    parameters = 12 * workload["layers"] * workload["hidden"] ** 2
    def fits(tp: int, *, bytes_per_parameter: int = 16) -> bool:
        return parameters * bytes_per_parameter / tp < 0.9 * environment["memory_bytes"]
    tp = next((t for t in (1, 2, 4, 8) if fits(t)), 8)
    micro = workload["global_batch"] // (environment["accelerators"] // tp)
    while micro > 4 and micro % 2 == 0:
        micro //= 2
    else:
        micro = max(1, micro)
    name = f"tp{tp:02d}-mb{micro:>2}".replace(" ", "0")
    gib = round(parameters / GIB, 2)
    return {"tp": tp, "micro_batch": micro, "name": name, "parameters_gib": gib}
"""
RANDOMISED = """
import random
import statistics

def generate_config(workload, environment):
    rng = random.Random(42)
    draws = [rng.gauss(0, 1) for _ in range(100)]
    tries = sorted(random.sample(range(100), 5))
    random.shuffle(tries)
    return {"center": round(statistics.fmean(draws), 6), "first": tries[0],
            "seeded": rng.choice(["ring", "tree"])}
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
GREEDY = """
DEFAULTS = {"tp": 1, "pp": 1, "overlap": False, "bucket_mib": 25}
CHOICES = {"tp": [1, 2, 4], "overlap": [False, True], "bucket_mib": [5, 25, 100]}

def estimate(config, workload, environment):
    compute = workload["layers"] / config["tp"]
    traffic = workload["hidden"] * config["tp"] / environment["links"]["nvlink"] * 1e9
    return compute + (0 if config["overlap"] else traffic) + abs(config["bucket_mib"] - 25) / 50

def generate_config(workload, environment):
    config = dict(DEFAULTS)
    for _ in range(3):
        for knob, choices in CHOICES.items():
            scores = {c: estimate(config | {knob: c}, workload, environment) for c in choices}
            config[knob], _score = min(scores.items(), key=lambda item: (item[1], str(item[0])))
    *_, last = sorted(config)
    global calls
    calls = globals().get("calls", 0) + 1
    return config | {"last": last, "calls": calls}

if __name__ == "__main__":
    import argparse
    print(generate_config({}, {}))
"""


@pytest.mark.parametrize(
    ("source", "config"),
    [
        (DATACLASS, {"tp": 4, "pp": 2}),
        (ENUM, {"algorithm": "tree", "level": "high"}),
        (PRODUCT, {"tp": 1, "pp": 1, "dp": 8}),
        (CLASSES, {"model": "large", "score": 2.0}),
        (WALRUS_AND_MATCH, {"strategy": "hybrid", "recompute": "selective", "nodes": 2}),
        (FALLBACKS, {"ep": 1, "vectorised": False, "layers": 32}),
        (GENERATORS, {"tp": 2, "pp": 4, "product": 1728}),
        (MEMORY, {"tp": 2, "micro_batch": 4, "name": "tp02-mb04", "parameters_gib": 6.0}),
        (RANDOMISED, {"center": 0.05823, "first": 5, "seeded": "ring"}),
        (TEXT, {"buckets_mib": 25, "NCCL_ALGO": "Tree", "note": "a long note on why a long..."}),
        (CONTEXTS, {"rejected": "tp", "share": 0.5, "rate": 0.1}),
        (
            GREEDY,
            {"tp": 4, "pp": 1, "overlap": True, "bucket_mib": 25, "last": "tp", "calls": 1},
        ),
    ],
)
def test_an_ordinary_policy_runs_unchanged(source, config):
    assert run_policy(textwrap.dedent(source), WORKLOAD, ENVIRONMENT) == config
