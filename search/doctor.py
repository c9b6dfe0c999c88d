"""All checks of `cclsearch doctor`; they change nothing on the machine."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event

from evaluator import doctor as machine
from evaluator.doctor import (
    CheckResult,
    MeasuredLaunch,
    State,
    check_launches,
    check_noise,
    launch_repeatedly,
)
from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.cluster.agents import NodeAgent
from evaluator.launchers.cluster.allocation import NodesUnavailable
from evaluator.launchers.cluster.launcher import ClusterLauncher, allocation_of
from evaluator.launchers.cluster.nodes import check_launcher, cluster_of, environment_for_nodes
from evaluator.launchers.cluster.scheduler import SchedulerError
from evaluator.launchers.cluster.schedulers.catalog import SCHEDULERS, scheduler_named
from evaluator.launchers.local import LocalLauncher, may_isolate
from evaluator.machine import local_environment
from evaluator.ports import Launcher
from evaluator.recipes.catalog import recipe_of
from policies.sandbox import SandboxUnavailable, sandbox_level
from records.errors import CclsearchError
from records.store.locks import NETWORK_FILE_SYSTEMS, VOLATILE_FILE_SYSTEMS, file_system
from records.study import LOCAL, Environment, Study
from records.trial import Config
from records.workload import Workload
from search import settings
from search.study.study_file import builtin_study, fitted

QUICK_LAUNCHES, LONG_LAUNCHES = 4, 16
LEAST_STORE_BYTES = 1 << 30


def findings(store: Path, *, long_noise: bool, python: str | None = None) -> Iterator[CheckResult]:
    """Yield the result of each check when it ends; ranks run in the Python that is named."""
    hardware = machine.gpus, machine.gpu_links, machine.cores, machine.memory, machine.clocks
    for check in (*hardware, machine.hardware_threads, machine.interfaces, sandbox):
        yield check()
    torch = machine.torch_backends(python)
    yield torch
    if torch.state is not State.MISSING:
        yield from launches(long_noise=long_noise, python=python)
    yield store_folder(store)
    for check in (machine.compiler, machine.stack_reader, machine.mpi, machine.slurm):
        yield check()
    yield machine.containers()
    yield api_key()


def sandbox() -> CheckResult:
    """Check that a policy can be confined, by confining one."""
    try:
        level = sandbox_level()
    except SandboxUnavailable as fault:
        remedy = "policies run only in the sandbox"
        return _result("sandbox", str(fault), remedy, state=State.MISSING, needed=True)
    return _result("sandbox", level, needed=True)


def launches(*, long_noise: bool, python: str | None = None) -> Iterator[CheckResult]:
    """Launch a small job several times: on the CPU over gloo, and on GPUs if there are any."""
    here = local_environment()
    on_cpu = replace(here, device="cpu", world_size=2, ranks_per_node=2, memory_bytes=None)
    count = LONG_LAUNCHES if long_noise else QUICK_LAUNCHES
    needed = here.device == "cpu"
    yield from _launches("launch, gloo", on_cpu, count, needed=needed, python=python)
    if here.device == "cuda":
        world_size = min(2, here.world_size)
        on_gpus = replace(here, world_size=world_size, ranks_per_node=world_size)
        yield from _launches("launch, NCCL", on_gpus, count, needed=True, python=python)


def store_folder(store: Path) -> CheckResult:
    """Check that records can be written, and that a restart of the machine keeps them."""
    folder = next(path for path in (store.absolute(), *store.absolute().parents) if path.exists())
    free = os.statvfs(folder)
    free_bytes, kind = free.f_bavail * free.f_frsize, file_system(folder)
    detail = f"{store} on {kind}, {free_bytes / 2**30:.1f} GiB free"
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        elsewhere, detail = "choose another folder with --store", f"{detail}, cannot be written"
        return _result("store", detail, elsewhere, state=State.MISSING, needed=True)
    remedy = None
    if free_bytes < LEAST_STORE_BYTES:
        remedy = "free some space, or choose another folder with --store"
    elif kind in NETWORK_FILE_SYSTEMS:
        remedy = (
            "a network file system: use it from one machine at a time, readers wait for the writer;"
            " should its locks fail, cclsearch doctor --rebuild loses no trial; a local disk is"
            " better"
        )
    elif kind in VOLATILE_FILE_SYSTEMS:
        remedy = "records are lost when the machine restarts; use a disk"
    return _result("store", detail, remedy, needed=True)


def api_key() -> CheckResult:
    """Check that a key is set; never show it."""
    variable = settings.key_variable()
    if variable is not None:
        return _result("API key", f"{variable} is set")
    return _result(
        "API key",
        "neither ANTHROPIC_API_KEY nor ANTHROPIC_AUTH_TOKEN is set",
        "searches use the offline strategy; export a key for --strategy llm",
    )


def _result(
    subject: str,
    detail: str,
    remedy: str | None = None,
    *,
    state: State | None = None,
    needed: bool = False,
) -> CheckResult:
    """Return a result; a remedy is a warning unless `state` says otherwise."""
    state = state or (State.WARN if remedy else State.OK)
    return CheckResult(subject=subject, state=state, detail=detail, remedy=remedy, needed=needed)


def _launches(
    subject: str, environment: Environment, count: int, *, needed: bool, python: str | None
) -> Iterator[CheckResult]:
    study = _small_study(environment, python)
    recipe = recipe_of(study)
    launcher = LocalLauncher(
        recipe.inherited(study, settings.trial_environment()), study.launch.threads_per_rank
    )
    with tempfile.TemporaryDirectory(prefix="cclsearch-doctor-") as folder, closing(launcher):
        done = _launch_small(study, launcher, Path(folder), count)
    yield check_launches(subject, done, needed=needed)
    if not isinstance(done, str):
        yield check_noise(done, can_isolate=may_isolate())


def _launch_small(
    study: Study, launcher: Launcher, folder: Path, count: int
) -> tuple[MeasuredLaunch, ...] | str:
    evaluator = TrialEvaluator(recipe_of(study), launcher, lambda _phase: None)
    micro_batch = 2 if study.environment.device == "cuda" else 1
    config = Config({"dp_replicate": study.environment.world_size, "micro_batch": micro_batch})
    return launch_repeatedly(evaluator, study, config, folder, count)


def launchers(study: Study) -> Iterator[CheckResult]:
    """Yield for each launcher whether it can be used from here, and what its scheduler offers."""
    yield _result(LOCAL, "ranks on this machine")
    for name in SCHEDULERS:
        yield _scheduler(name, study)


def _scheduler(name: str, study: Study, *, needed: bool = False) -> CheckResult:
    scheduler = scheduler_named(name, cluster_of(study), settings.trial_environment())
    missing = scheduler.missing()
    if missing is not None:
        what, _, remedy = missing.partition("; ")
        return _result(name, what, remedy or None, state=State.MISSING, needed=needed)
    try:
        facts = scheduler.facts()
    except SchedulerError as error:
        return _result(name, str(error), state=State.MISSING, needed=needed)
    detail = ", ".join(f"{fact} {words}" for fact, words in facts.items())
    return _result(name, detail or "can be used", needed=needed)


def launcher_findings(study: Study, store: Path) -> Iterator[CheckResult]:
    """Yield the results of checks of a launcher: its scheduler, each node, a launch over all."""
    name = study.launch.launcher
    check_launcher(study)
    scheduler = _scheduler(name, study, needed=True)
    yield scheduler
    if scheduler.state is State.MISSING:
        return
    ours = settings.trial_environment()
    allocation = allocation_of(study, f"doctor-{os.getpid()}", store.absolute(), ours)
    with closing(allocation):
        try:
            for agent in allocation.agents(Event(), lambda _phase: None):
                yield _result(f"node {agent.node}", _node_words(agent), needed=True)
        except (CclsearchError, NodesUnavailable) as error:
            yield _result("nodes", str(error), state=State.MISSING, needed=True)
            return
        count = allocation.nodes.count
        one_each = replace(study.environment, world_size=count, ranks_per_node=1, memory_bytes=None)
        small = _small_study(one_each)
        small = replace(small, launch=replace(small.launch, launcher=name))
        there = environment_for_nodes(study, ours, is_shared=allocation.is_shared)
        launcher = ClusterLauncher(allocation, there, small.launch.threads_per_rank)
        with tempfile.TemporaryDirectory(dir=allocation.folder) as folder:
            done = _launch_small(small, launcher, Path(folder), QUICK_LAUNCHES)
        yield check_launches(f"launch on {count}", done, needed=True)


def _node_words(agent: NodeAgent) -> str:
    facts = agent.facts
    parts = [f"{facts.core_count} cores"]
    if facts.memory_bytes is not None:
        parts.append(f"{facts.memory_bytes / 2**30:.0f} GiB")
    parts += [f"{facts.gpus.count(kind)} x {kind}" for kind in sorted({*facts.gpus})]
    return ", ".join([*parts, f"Python {facts.python}", facts.address])


def _small_study(environment: Environment, python: str | None = None) -> Study:
    """Return the built-in study with a small model.

    It takes milliseconds a step on CPUs. GPUs get one of tens of milliseconds: where the host
    launches kernels more slowly than the GPU runs them, the steps show the host's noise alone.
    """
    study = builtin_study(environment)
    scale = 24 if environment.device == "cuda" else 1
    workload = Workload(
        name="doctor",
        layer_count=2,
        hidden_size=64 * scale,
        head_count=2 * scale,
        kv_head_count=2 * scale,
        ffn_size=128 * scale,
        vocab_size=128 * scale,
        sequence_length=64 * scale,
        global_batch=4,
    )
    measure = replace(study.measure, warmup_steps=3, timed_steps=20, profiled_steps=0)
    launch = replace(study.launch, memory_budget_bytes=None, python=python)
    study = replace(study, workload=workload, measure=measure, launch=launch)
    return replace(study, workload=fitted(workload, environment))
