"""All checks of `cclsearch doctor`; they change nothing on the machine."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from evaluator import doctor as machine
from evaluator.doctor import CheckResult, State, check_launches, check_noise, launch_repeatedly
from evaluator.evaluate import TrialEvaluator
from evaluator.launchers.local import LocalLauncher
from evaluator.machine import local_environment
from evaluator.recipes.catalog import recipe_of
from policies.sandbox import SandboxUnavailable, sandbox_level
from records.store.locks import NETWORK_FILE_SYSTEMS, VOLATILE_FILE_SYSTEMS, file_system
from records.study import Environment, Study
from records.trial import Config
from records.workload import Workload
from search import settings
from search.study.study_file import builtin_study

QUICK_LAUNCHES, LONG_LAUNCHES = 4, 16
LEAST_STORE_BYTES = 1 << 30


def findings(store: Path, *, long_noise: bool) -> Iterator[CheckResult]:
    """Yield the result of each check when it ends."""
    hardware = machine.gpus, machine.gpu_links, machine.cores, machine.memory, machine.clocks
    for check in (*hardware, machine.interfaces, machine.torch_backends, sandbox):
        yield check()
    yield from launches(long_noise=long_noise)
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


def launches(*, long_noise: bool) -> Iterator[CheckResult]:
    """Launch a small job several times: on the CPU over gloo, and on GPUs if there are any."""
    here = local_environment()
    on_cpu = replace(here, device="cpu", world_size=2, ranks_per_node=2, memory_bytes=None)
    count = LONG_LAUNCHES if long_noise else QUICK_LAUNCHES
    yield from _launches("launch, gloo", on_cpu, count, needed=here.device == "cpu")
    if here.device == "cuda":
        world_size = min(2, here.world_size)
        on_gpus = replace(here, world_size=world_size, ranks_per_node=world_size)
        yield from _launches("launch, NCCL", on_gpus, count, needed=True)


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
    subject: str, environment: Environment, count: int, *, needed: bool
) -> Iterator[CheckResult]:
    study = _small_study(environment)
    recipe = recipe_of(study)
    config = Config({"dp_replicate": environment.world_size, "micro_batch": 1})
    launcher = LocalLauncher(
        recipe.inherited(study, settings.trial_environment()), study.launch.threads_per_rank
    )
    try:
        evaluator = TrialEvaluator(recipe, launcher, lambda _phase: None)
        with tempfile.TemporaryDirectory(prefix="cclsearch-doctor-") as folder:
            done = launch_repeatedly(evaluator, study, config, Path(folder), count)
    finally:
        launcher.close()
    yield check_launches(subject, done, needed=needed)
    if not isinstance(done, str):
        yield check_noise(done)


def _small_study(environment: Environment) -> Study:
    """Return the built-in study with a model that takes milliseconds a step."""
    study = builtin_study(environment)
    workload = Workload(
        name="doctor",
        layer_count=2,
        hidden_size=64,
        head_count=2,
        kv_head_count=2,
        ffn_size=128,
        vocab_size=128,
        sequence_length=64,
        global_batch=4,
    )
    measure = replace(study.measure, warmup_steps=3, timed_steps=20, profiled_steps=0)
    launch = replace(study.launch, memory_budget_bytes=None)
    return replace(study, workload=workload, measure=measure, launch=launch)
