"""What `decision_quality.py` prints for a person."""

from collections.abc import Mapping

from decision_methods import PAIRED
from decision_rates import CASES, Outcomes, Quality
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
    print_targets(found.outcomes[PAIRED.name])


def print_noise(noise: NoiseParts) -> None:
    between = "nothing" if noise.between is None else f"{noise.between:.2%}"
    print("\n  noise, standard deviation")
    print(f"  ratio of a round      {noise.ratio:.2%}, of means {noise.ratio_of_means:.2%}")
    print(f"  a launch, all session {noise.launch:.2%}, {noise.launch_in_round:.2%} in its round")
    print(f"  of it between         {between}; within {noise.within:.2%} (a step {noise.step:.2%})")
    if noise.detectable is not None:
        shown = f"{noise.detectable - 1:.2%}"
        print(f"  10 rounds would show  {shown} with 80 % power, without a margin")


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


def print_targets(jobs: Mapping[str, Outcomes]) -> None:
    """Whether the search's own decision is as good as it is meant to be."""
    if not jobs:
        return
    false, three, ten = jobs["A2"].claimed, jobs["B3"].slow, jobs["B10"].slow
    print(f"\n  {PAIRED.name}, within 10 launches a side")
    for words, rate, met in (
        ("false claims at most 1 %", false, false.share <= 0.01),
        ("sees 10 % in at least 95 %", ten, ten.share >= 0.95),
        ("sees 3 % in at least 80 %", three, three.share >= 0.80),
    ):
        print(f"  {words:{LEFT}}{rate!s:>21} {'(met)' if met else '(missed)'}")


SAID = (Verdict.SLOW, Verdict.FAST, Verdict.SAME, Verdict.UNDECIDED)
