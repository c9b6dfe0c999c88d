"""vLLM: a server under vLLM's own load, or its offline benchmark; a step is a batch of requests."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from evaluator.estimate.memory import decoder_of, edge_weights, kv_size, layer_weights
from evaluator.ports import Job, JobResult, Reading
from evaluator.recipes.command import TRACE_FOLDER
from evaluator.recipes.frameworks.framework import FrameworkRecipe
from evaluator.recipes.frameworks.launch_line import LaunchLine
from evaluator.recipes.frameworks.parser import Answer
from evaluator.recipes.frameworks.traffic import read_traffic
from evaluator.recipes.knobs import new_rule
from evaluator.recipes.script_output import TraceFolder
from records.expression import Rule
from records.study import Measure, Study, Value
from records.trial import Config, Failed
from records.workload import Workload

TRAFFIC_FILE = "traffic.json"
SERVER_TIMEOUT_S = 900.0
"""Loading a model, compiling it and capturing graphs takes minutes."""
LEAST_REQUESTS = 8
_CLIENT_FLAGS = ("--tokenizer", "--tokenizer-mode", "--trust-remote-code")
"""Arguments of the server that its load generator needs as well."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


class Vllm(FrameworkRecipe):
    """Starts `vllm serve` and loads it, or `vllm bench throughput`."""

    name = "vllm"

    def study(self, line: LaunchLine, base: Study, answer: Answer | None = None) -> Study:
        """Return the search around a launch line, with time for a server to load its model."""
        study = super().study(line, base, answer)
        if study.measure.timeout_s != Measure().timeout_s:
            return study
        return replace(study, measure=replace(study.measure, timeout_s=SERVER_TIMEOUT_S))

    def workload(self, base: Workload, line: LaunchLine, answer: Answer | None) -> Workload:
        """Return the work of a batch, and for a server the traffic."""
        work = super().workload(base, line, answer)
        work = replace(work, expert_count=work.expert_count or 0)
        return replace(work, concurrency=(16, 1, 64)) if _serves(line.program) else work

    def may_idle(self, study: Study) -> bool:
        """Whether fewer ranks may be better: on CPUs one rank can use all cores."""
        return study.environment.device == "cpu" or super().may_idle(study)

    def rules(self, study: Study) -> tuple[Rule, ...]:
        """Every rule of the table, and for offline batches one more."""
        if study.command is None or _serves(study.command.run):
            return super().rules(study)
        offline = new_rule(
            "offline_replicas",
            "dp == 1 or expert_count > 0",
            "replicas of a dense model need a server (config/parallel.py)",
        )
        return (*super().rules(study), offline)

    def work_words(self, study: Study, settings: Mapping[str, Value]) -> tuple[str, ...]:
        """Return what holds an offline batch equal; a server's is held by its load generator."""
        served = study.command is not None and _serves(study.command.run)
        return () if served else super().work_words(study, settings)

    def knob_words(self, study: Study, name: str, settings: Mapping[str, Value]) -> Sequence[str]:
        """Return the arguments of one knob; `auto` kernels are those of no argument."""
        if name == "attention_backend" and settings[name] == "auto":
            return ()
        return super().knob_words(study, name, settings)

    def files(self, study: Study, config: Config) -> Mapping[str, str]:
        """Return the traffic, which the hook asks vLLM's load generator for."""
        if study.command is None or not _serves(study.command.run):
            return super().files(study, config)
        work = study.workload
        points = work.traffic
        first = points[0].concurrency or 0
        traffic = {
            "points": [
                {
                    "concurrency": point.concurrency,
                    "request_rate": point.requests_per_s,
                    "requests": _request_count(work.global_batch, point.concurrency, first),
                }
                for point in points
            ],
            "input_length": work.sequence_length,
            "output_length": work.output_length or 1,
            "seed": work.seed,
            "words": [
                word
                for at, word in enumerate(study.command.run)
                if word.partition("=")[0] in _CLIENT_FLAGS
                or (at and study.command.run[at - 1] in _CLIENT_FLAGS[:2])
            ],
        }
        return {**super().files(study, config), TRAFFIC_FILE: json.dumps(traffic)}

    def derived(self, study: Study) -> Mapping[str, Callable[[Mapping[str, Value]], Value]]:
        """Return the least memory that a rank needs, where the sizes of the model are known.

        That is its part of the weights, the KV cache of one request, and the logits of a batch.
        """
        work = decoder_of(study.workload)
        if isinstance(work, tuple):
            return {}
        size = _BYTES.get(study.workload.precision, 2)

        def estimate(settings: Mapping[str, Value]) -> Value:
            tp, pp = (int(settings.get(name, 1)) for name in ("tp", "pp"))
            layers = sum(layer_weights(work, n, tp=tp).total for n in range(work.layer_count))
            edges = edge_weights(work, first=True, last=True, tp=tp).total
            length = work.sequence_length + work.output_length
            keys = 2 * work.layer_count * kv_size(work) / min(tp, work.kv_head_count)
            seqs = int(settings.get("max_num_seqs", 1))
            numbers = (layers + edges + keys * length) / pp + seqs * work.vocab_size / tp
            return int(size * numbers)

        return {"estimated_memory_bytes": estimate}

    def estimate(self, study: Study, config: Config) -> Mapping[str, float] | None:
        """Return what the study's prior says of these GPUs, else our own estimate."""
        prior = study.prior
        if prior is None or prior.accelerator != study.environment.accelerator:
            return super().estimate(study, config)
        return prior.parts_s({**study.space.defaults, **config.values})

    def read(self, study: Study, job: Job, result: JobResult, launched_ns: int) -> Reading | Failed:
        """Read the steps of an offline batch, or what the load generator saw of a server."""
        reading = super().read(study, job, result, launched_ns)
        if isinstance(reading, Failed) or TRAFFIC_FILE not in job.files:
            return reading
        folder = result.workdir / job.folders.get("TRACE_DIR", TRACE_FOLDER)
        traffic = read_traffic(TraceFolder(path=folder, launched_ns=launched_ns), study)
        if isinstance(traffic, Failed):
            return traffic
        measurement = replace(
            reading.measurement,
            serving=traffic.serving(len(reading.measurement.step_times_s)),
            traffic=traffic.results,
        )
        return replace(reading, measurement=measurement)


def _serves(words: Sequence[str]) -> bool:
    return "bench" not in words


def _request_count(batch: int, concurrency: int | None, first: int) -> int:
    """Return how many requests take about as long at a point as the batch does at the first."""
    if not concurrency or not first:
        return batch
    return min(batch, max(LEAST_REQUESTS, math.ceil(batch * concurrency / first)))
