"""A step of a decoder in either phase, on an environment."""

from collections.abc import Mapping

from evaluator.estimate.inference import estimated_inference
from evaluator.estimate.machine import machine_of
from evaluator.estimate.training import estimated_training
from evaluator.rank.job import Config, Workload
from records.study import Environment


def estimated_step(
    work: Workload, config: Config, environment: Environment, *, distributed_tensors: bool = True
) -> Mapping[str, float]:
    """Seconds of a step, by what takes them, of a configuration that breaks no rule.

    `distributed_tensors` are how the built-in trainer slices matrices, at a cost in Python.
    """
    threads = config.threads_per_rank
    machine = machine_of(environment, work.precision, config.world_size, threads)
    if work.output_length:
        return estimated_inference(work, config, machine)
    return estimated_training(work, config, machine, distributed_tensors=distributed_tensors)
