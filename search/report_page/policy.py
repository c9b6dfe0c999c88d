"""The policy that decided the best trial, and how it came about."""

from difflib import unified_diff

from records.trial import Policy
from search.report_page.blocks import Block, Code, Difference, Facts, Section
from search.report_page.seen import Seen
from search.words.trial import one_line

RATIONALE_CHARS = 2000
LINEAGE_SHOWN = 12
SOURCE_CHARS = 60_000
CUT = "\n[... the rest is on record ...]"


def policy(seen: Seen) -> Section | None:
    """Program, reason, lineage and difference to the seed; None without a best trial."""
    best = seen.best
    if best is None:
        return None
    found = best.policy
    facts = [
        ("written by", found.author),
        ("reason given", one_line(found.rationale, RATIONALE_CHARS) or "none"),
        ("digest", found.digest),
    ]
    lineage = _lineage(seen, found)
    if lineage:
        facts.append(("follows from", lineage))
    blocks: list[Block] = [
        Facts(lines=tuple(facts)),
        Code(text=_cut(found.source), language="python"),
    ]
    lead = f"The program that decided trial {best.ordinal}."
    seed = seen.seed
    if seed is not None and seed.policy.digest != found.digest:
        blocks.append(Difference(lines=tuple(_changes(seed.policy, found, best.ordinal))))
        lead = f"The program that decided trial {best.ordinal}, and what it changes of the seed's."
    return Section(name="policy", heading="The best policy", lead=lead, blocks=tuple(blocks))


def _changes(seed: Policy, found: Policy, ordinal: int) -> list[str]:
    sides = _cut(seed.source).splitlines(), _cut(found.source).splitlines()
    return list(unified_diff(*sides, "seed", f"trial {ordinal}", lineterm=""))


def _cut(source: str) -> str:
    return source if len(source) <= SOURCE_CHARS else source[:SOURCE_CHARS] + CUT


def _lineage(seen: Seen, found: Policy) -> str:
    """The policies that it was derived from, the nearest first, by the trials that had them."""
    ordinals = {trial.policy.digest: trial for trial in reversed(seen.history.trials)}
    chain: list[str] = []
    parent, known = found.parent, {found.digest}
    while parent is not None and parent not in known and len(chain) < LINEAGE_SHOWN:
        trial = ordinals.get(parent)
        if trial is None:
            chain.append(f"a policy that is not on record ({parent[:12]})")
            break
        chain.append(f"trial {trial.ordinal} by {trial.policy.author}")
        known.add(parent)
        parent = trial.policy.parent
    return ", then ".join(chain)
