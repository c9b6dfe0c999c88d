"""What `decision_quality.py` prints for a person."""

from collections.abc import Mapping

from decision_methods import PAIRED, RULE
from decision_rates import CASES, SLOWED, Outcomes, Quality
from decision_repeats import Repeats
from decision_rounds import NoiseParts

from evaluator.timing.decision import Verdict

TAKEN = {"relaunch": "one after the other", "together": "taking turns"}
LEFT = 28


def print_repeats(found: Repeats | str) -> None:
    """One block a source of recorded repeats."""
    if isinstance(found, str):
        print(f"\nrecorded: {found}")
        return
    print(f"\nrecorded: {found.source}: two launches of {found.pair_count} configurations")
    for limit, rate in found.apart.items():
        print(f"  apart by more than {limit:4.0%}     {rate}")
    if found.ranked_apart:
        print(f"  told apart by Mann-Whitney  {found.ranked_apart}")


def print_quality(found: Quality) -> None:
    """Everything about one recording."""
    print(f"\n{found.source}: {found.round_count} rounds, launches {TAKEN[found.kind]}")
    print(f"  machine               {found.about['machine']}")
    print(f"  launches              {found.launch_count}, median {found.wall_s:.1f} s")
    print(f"  disturbed by others   {found.disturbed_count}")
    print(f"  rounds that failed    {found.broken_round_count}")
    for job, shift in found.shifts.items():
        told = f"{shift.ratio - 1:+.2%} [{shift.low - 1:+.2%}, {shift.high - 1:+.2%}]"
        print(f"  {CASES[job] + ', measured':<22}{told}")
    print_noise(found.noise)
    print_rates(found.outcomes)
    print_verdicts(found.outcomes[PAIRED.name])
    print_slowed(found.slowed)
    print_targets(found.slowed.get(PAIRED.name, {}))


def print_noise(noise: NoiseParts) -> None:
    between = "nothing" if noise.between is None else f"{noise.between:.2%}"
    print("\n  noise, standard deviation")
    print(f"  ratio of a round      {noise.ratio:.2%}, of means {noise.ratio_of_means:.2%}")
    print(f"  a launch, all session {noise.launch:.2%}, {noise.launch_in_round:.2%} in its round")
    print(f"  of it between         {between}; within {noise.within:.2%} (a step {noise.step:.2%})")
    if noise.detectable is not None:
        shown = f"{noise.detectable - 1:.2%}"
        print(f"  {RULE.max_rounds} rounds would show  {shown} with 80 % power")


def print_rates(methods: Mapping[str, Mapping[str, Outcomes]]) -> None:
    """False claims, detections and launches a side of every method."""
    heads = "".join(f"{head:>21}" for head in ("false claims", "sees 3 %", "sees 10 %"))
    print(f"\n  {'':{LEFT}}{heads}  launches a side")
    for name, jobs in methods.items():
        if not jobs:
            print(f"  {name:{LEFT}} too few rounds")
            continue
        cells = (jobs["A2"].claimed, jobs["B3"].slow, jobs["B10"].slow)
        launches = " / ".join(f"{jobs[job].launches_a_side:.3g}" for job in CASES)
        print(f"  {name:{LEFT}}{''.join(f'{cell!s:>21}' for cell in cells)}  {launches:>15}")
    print("  [95 % interval, for as many series as share no round]")


def print_verdicts(jobs: Mapping[str, Outcomes]) -> None:
    """All that the search's own decision said, not only what counts for or against it."""
    if not jobs:
        return
    print(f"\n  {PAIRED.name + ':':{LEFT}}{''.join(f'{verdict:>11}' for verdict in SAID)}   series")
    for job, found in jobs.items():
        shares = "".join(f"{found.verdicts[verdict].share:>11.1%}" for verdict in SAID)
        series = f"{found.series_count}, {found.disjoint_count} of them disjoint"
        print(f"  {CASES[job]:{LEFT}}{shares}   {series}")


def print_slowed(methods: Mapping[str, Mapping[float, Outcomes]]) -> None:
    """What is claimed of the identical job, its steps multiplied."""
    heads = "".join(f"{'equal' if by == 1 else f'{_percent(by)} slower':>13}" for by in SLOWED)
    print(f"\n  {'steps multiplied, claimed:':{LEFT}}{heads}   launches a side")
    for name, found in methods.items():
        shares = "".join(f"{found[by].claimed.share:>13.1%}" for by in SLOWED)
        launches = " / ".join(f"{found[by].launches_a_side:.3g}" for by in SLOWED)
        print(f"  {name:{LEFT}}{shares}   {launches}")


def print_targets(found: Mapping[float, Outcomes]) -> None:
    """Whether the search's own decision is as good as it is meant to be."""
    if not found:
        return
    false = found[1.0].claimed
    print(f"\n  {PAIRED.name}, within {RULE.max_rounds} launches a side")
    print(f"  {'false claims at most 1 %':{LEFT}}{false!s:>21} {_met(false.share <= 0.01)}")
    for by, least in LEAST_SEEN.items():
        seen = found[by].slow
        words = f"sees {_percent(by)} in at least {100 * least:.0f} %"
        print(f"  {words:{LEFT}}{seen!s:>21} {_met(seen.share >= least)}")


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f} %"


def _met(is_met: bool) -> str:
    return "(met)" if is_met else "(missed)"


LEAST_SEEN = {1.03: 0.4, 1.05: 0.7, 1.1: 0.95}
SAID = (Verdict.SLOW, Verdict.FAST, Verdict.SAME, Verdict.UNDECIDED)
