"""The workload of a study as the built-in ranks take it, checked."""

import json
from dataclasses import MISSING, fields

from evaluator.rank.job import DeviceKind
from evaluator.rank.job import Workload as RankWorkload
from evaluator.rank.job_file import JobError, parse
from records.errors import StudyError
from records.study import Environment
from records.workload import Workload

ROTARY_PAIR = 2


def rank_device(environment: Environment) -> DeviceKind:
    """Where ranks of ours run; raises `StudyError` for a machine that they cannot run on."""
    if environment.device == "tpu":
        raise StudyError(
            "[environment] device 'tpu': ranks of cclsearch run on GPUs and CPUs; start a program "
            'of your own there, with --command and --tuning, or with recipe = "command" under '
            "[launch]"
        )
    return DeviceKind(environment.device)


def rank_workload(workload: Workload) -> RankWorkload:
    """What the ranks are told; raises `StudyError` for work that they cannot do."""
    if workload.phase == "communication":
        raise StudyError(
            "[workload] phase 'communication' trains nothing; give recipe = \"collectives\" "
            "under [launch]"
        )
    given = {field.name: getattr(workload, field.name) for field in fields(RankWorkload)}
    for field in fields(RankWorkload):
        if field.default is MISSING and given[field.name] is None:
            raise StudyError(
                f"[workload] {field.name} is missing; the builtin recipe needs it: give it, or "
                'a known model, as in model = "llama-3.1-8b"'
            )
    if workload.requests_per_s is not None:
        raise StudyError(
            f"[workload] requests_per_s is {workload.requests_per_s:g}: the builtin recipe answers "
            "all requests of a batch together; start a server of your own with --command"
        )
    if workload.phase == "training":
        given["output_length"] = None
    elif not workload.output_length:
        raise StudyError(
            "[workload] output_length is missing; the builtin recipe needs it, the tokens of an "
            "answer: give it under [workload] of a study file (-c)"
        )
    known = {name: value for name, value in given.items() if value is not None}
    try:
        work = parse(RankWorkload, json.dumps(known))
    except JobError as error:
        raise StudyError(f"[workload] {str(error).removeprefix('job: ')}") from error
    _check_attention(work)
    if work.expert_count:
        _check_experts(work)
    return work


def _check_attention(work: RankWorkload) -> None:
    if not work.head_size and work.hidden_size % work.head_count:
        raise StudyError(
            f"[workload] hidden_size {work.hidden_size} does not divide by head_count "
            f"{work.head_count}; change one of them, or give head_size"
        )
    if work.head_count % work.kv_head_count:
        raise StudyError(
            f"[workload] head_count {work.head_count} does not divide by kv_head_count "
            f"{work.kv_head_count}"
        )
    if work.head_width % ROTARY_PAIR:
        raise StudyError(
            f"[workload] heads of size {work.head_width} do not divide into the pairs that rotary "
            "positions turn; change hidden_size, head_count or head_size"
        )


def _check_experts(work: RankWorkload) -> None:
    for name in ("experts_per_token", "expert_ffn_size"):
        if not getattr(work, name):
            raise StudyError(f"[workload] a model with experts needs {name}, at least 1")
    if work.experts_per_token > work.expert_count:
        raise StudyError(
            f"[workload] experts_per_token {work.experts_per_token} is above expert_count "
            f"{work.expert_count}"
        )
    if work.dense_layer_count > work.layer_count:
        raise StudyError(
            f"[workload] dense_layer_count {work.dense_layer_count} is above layer_count "
            f"{work.layer_count}"
        )
