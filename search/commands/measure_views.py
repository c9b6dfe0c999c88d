"""Prints what holds of trials that were launched again."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import typer

from records.errors import StoreError
from records.machine import Machine
from records.store import Store
from records.study import Study
from records.trial import Measured, Outcome
from search.commands.options import store_flag
from search.replay.claim import Claim, Decision, Holds, all_hold
from search.replay.source import Source
from search.report import Line, print_lines
from search.words.condition import disturbed_among, disturbed_words
from search.words.machine import differences
from search.words.trial import NO_CONFIG


def print_decisions(
    study_id: str,
    study: Study,
    source: Source,
    decisions: Sequence[Decision],
    records: Store,
    go_on: str,
    *,
    as_json: bool,
) -> None:
    """Print every claim with its verdict, and what follows; `go_on` is what launches more."""
    holds = all_hold(decision.holds for decision in decisions)
    launches = [*(d.again for d in decisions), *(r.outcome for r in records.repeats(study_id))]
    differs = _differences(decisions, records)
    if as_json:
        facts = {
            "event": "finished",
            "study_id": study_id,
            "mode": "measure",
            "replay_of": source.row.id,
            "holds": holds.value,
            "trials": [_facts(decision) for decision in decisions],
            "machine_differs": list(differs),
            "launches": len(launches),
        }
        typer.echo(json.dumps(facts, allow_nan=False))
        return
    print_lines(
        (
            *(line for decision in decisions for line in _lines(decision)),
            *(("machine differs", words) for words in differs),
            *_disturbed(launches),
            ("replay", _verdict(decisions, holds)),
            ("record", f"study {study_id} in {records.root}, of study {source.row.id}"),
            *(("next", each) for each in _next(study_id, source, decisions, records)),
            *_more_rounds(study, decisions, go_on),
        )
    )


def _lines(decision: Decision) -> Iterator[Line]:
    config = decision.trial.config
    settings = NO_CONFIG if config is None else str(config)
    yield f"trial {decision.trial.ordinal}", f"{decision.holds}: {settings}"
    for claim in decision.claims:
        yield claim.name, f"{claim.holds}, {claim.why}"
        if claim.decides is not None:
            yield "to decide it", claim.decides


def _verdict(decisions: Sequence[Decision], holds: Holds) -> str:
    """The verdict over all, and which trials stand against it."""
    if len(decisions) == 1:
        return holds.value
    count = sum(decision.holds is Holds.CONFIRMED for decision in decisions)
    open_ = [d for d in decisions if d.holds is not Holds.CONFIRMED]
    told = [f"trial {d.trial.ordinal} {d.holds}" for d in open_]
    return ", ".join([f"{holds}: {count} of {len(decisions)} trials confirmed", *told])


def _differences(decisions: Sequence[Decision], records: Store) -> tuple[str, ...]:
    """What the machine here has that the one on record had not; nothing where nobody knows."""
    for decision in decisions:
        then = _machine(decision.trial.outcome, records)
        here = _machine(decision.again, records)
        if then is not None and here is not None:
            return differences(then, here)
    return ()


def _machine(outcome: Outcome, records: Store) -> Machine | None:
    """The machine of a launch; None where none is on record, or no longer there."""
    if outcome.launched is None or outcome.launched.machine is None:
        return None
    try:
        return records.machine(outcome.launched.machine)
    except StoreError:
        return None


def _disturbed(launches: Sequence[Outcome]) -> Iterator[Line]:
    found = disturbed_among(launches)
    if found is not None:
        yield "disturbed", disturbed_words(found)


def _next(
    study_id: str, source: Source, decisions: Sequence[Decision], records: Store
) -> Iterator[str]:
    flag = store_flag(records.root)
    failed = next((d for d in decisions if d.holds is Holds.NOT_CONFIRMED), None)
    if failed is not None:
        ordinal = failed.trial.ordinal
        outcomes = failed.trial.outcome, failed.again
        if all(isinstance(o, Measured) and o.breakdown is not None for o in outcomes):
            sides = f"trial:{source.row.id}:{ordinal} trial:{study_id}:{ordinal}"
            yield f"cclsearch trace diff {sides}{flag}"
        else:
            yield f"cclsearch trial show {study_id} {ordinal}{flag}"
    if not decisions or all_hold(d.holds for d in decisions) is Holds.CONFIRMED:
        yield f"cclsearch show {study_id}{flag}"


def _more_rounds(study: Study, decisions: Sequence[Decision], go_on: str) -> Iterator[Line]:
    if any(decision.holds is Holds.UNDECIDED for decision in decisions):
        yield "next", f"{go_on} --rounds {2 * study.measure.max_confirm_rounds}"


def _facts(decision: Decision) -> dict[str, object]:
    trial = decision.trial
    return {
        "ordinal": trial.ordinal,
        "config": None if trial.config is None else dict(trial.config.values),
        "holds": decision.holds.value,
        "claims": [_claim_facts(claim) for claim in decision.claims],
        "launches": decision.launch_count,
    }


def _claim_facts(claim: Claim) -> dict[str, object]:
    return {**asdict(claim), "holds": claim.holds.value}
