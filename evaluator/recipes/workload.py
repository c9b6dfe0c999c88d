"""The workload of a study as the built-in ranks take it, checked."""

import json
from dataclasses import MISSING, fields

from evaluator.rank.job import Workload as RankWorkload
from evaluator.rank.job_file import JobError, parse
from records.errors import StudyError
from records.models import MODELS
from records.workload import Workload

ROTARY_PAIR = 2


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
                f"give model, one of {', '.join(MODELS)}"
            )
    if workload.phase == "training":
        given["output_length"] = None
    elif not workload.output_length:
        raise StudyError("[workload] phase 'inference' needs output_length, at least 1")
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
    if work.hidden_size % work.head_count:
        raise StudyError(
            f"[workload] hidden_size {work.hidden_size} does not divide by head_count "
            f"{work.head_count}"
        )
    if work.head_count % work.kv_head_count:
        raise StudyError(
            f"[workload] head_count {work.head_count} does not divide by kv_head_count "
            f"{work.kv_head_count}"
        )
    head_size = work.hidden_size // work.head_count
    if head_size % ROTARY_PAIR:
        raise StudyError(
            f"[workload] heads of size {head_size} do not divide into the pairs that rotary "
            "positions turn; change hidden_size or head_count"
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
