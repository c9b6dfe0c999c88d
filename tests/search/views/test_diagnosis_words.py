"""What a diagnosis says, rule by rule, and that it always says it in two sentences."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from records.trial import CollectiveTime, Diagnosis
from search.views.diagnosis import diagnosis_lines, diagnosis_words

GIB = 2**30
COMPUTING = Diagnosis(
    compute_s=0.9,
    exposed_communication_s=0.05,
    hidden_communication_s=0.1,
    copy_s=0.02,
    idle_s=0.03,
)
REDUCE = CollectiveTime(
    kind="all_reduce",
    group_size=4,
    ranks=(0, 1, 2, 3),
    group_count=1,
    crosses_nodes=False,
    call_count=2.0,
    bytes=1e9,
    exposed_s=0.31,
    hidden_s=0.2,
)
TALKING = replace(
    COMPUTING,
    compute_s=0.4,
    exposed_communication_s=0.43,
    idle_s=0.15,
    collectives=(REDUCE,),
)


def sentences(diagnosis: Diagnosis) -> list[str]:
    return re.split(r"(?<=\.) ", diagnosis_words(diagnosis))


def first(diagnosis: Diagnosis) -> str:
    return sentences(diagnosis)[0]


def second(diagnosis: Diagnosis) -> str:
    return sentences(diagnosis)[1]


def test_exposed_communication_that_leads_is_named_with_its_largest_collective() -> None:
    assert first(TALKING) == (
        "43 % of the step is exposed communication, mostly all_reduce over 4 ranks (31 %), "
        "against 40 % compute."
    )


def test_compute_that_leads_is_told_with_the_largest_loss() -> None:
    quieter = replace(TALKING, compute_s=0.6, exposed_communication_s=0.35, idle_s=0.03)

    assert first(quieter) == (
        "60 % of the step is compute, and the largest loss is exposed communication (35 %), "
        "mostly all_reduce over 4 ranks (31 %)."
    )


def test_a_collective_below_half_of_the_loss_is_not_called_most_of_it() -> None:
    many = replace(TALKING, collectives=(replace(REDUCE, exposed_s=0.15),))

    assert "communication, most in all_reduce over 4 ranks (15 %)" in first(many)


def test_a_step_of_compute_alone_says_that_nothing_else_matters() -> None:
    assert first(COMPUTING) == (
        "90 % of the step is compute, and no other part takes a tenth of it."
    )


def test_a_rank_that_computes_longer_comes_before_faster_communication() -> None:
    uneven = replace(TALKING, slowest_rank=2, slowest_over_mean=1.18, pipeline_bubble_s=0.4)

    assert second(uneven).startswith("Rank 2 computes 18 % longer than the mean, so the others")


def test_a_rank_that_computes_longer_in_little_compute_is_not_to_blame() -> None:
    little = replace(TALKING, compute_s=0.1, idle_s=0.45, slowest_rank=2, slowest_over_mean=1.18)

    assert "Rank 2" not in diagnosis_words(little)


def test_a_pipeline_whose_stages_wait_needs_more_micro_batches() -> None:
    piped = replace(TALKING, pipeline_bubble_s=0.3)

    assert "mostly waiting for and receiving from neighbours (30 %)" in first(piped)
    assert "more and smaller micro batches" in second(piped)


def test_a_rank_that_is_late_without_computing_longer_is_looked_at() -> None:
    late = replace(TALKING, straggler=1, straggler_share=0.2, slowest_over_mean=1.01)

    assert second(late).startswith("The others wait for rank 1 in 20 % of their step although")


def test_a_collective_across_nodes_should_stay_within_one() -> None:
    crossing = replace(TALKING, collectives=(replace(REDUCE, crosses_nodes=True),))

    assert second(crossing).startswith("The all_reduce crosses nodes, so keep its ranks within one")


def test_many_small_calls_should_be_fewer() -> None:
    small = replace(REDUCE, call_count=64.0, bytes=64.0 * 4096)

    assert second(replace(TALKING, collectives=(small,))).startswith(
        "It is 64 calls of 4 KiB each, so fewer and larger ones"
    )


def test_what_could_be_hidden_should_start_earlier() -> None:
    shy = replace(REDUCE, exposed_s=0.39, hidden_s=0.01)

    assert second(replace(TALKING, collectives=(shy,))).startswith(
        "Only 2 % of the all_reduce overlaps with compute, so start it earlier"
    )


def test_more_communication_than_compute_cannot_be_hidden() -> None:
    flooded = replace(TALKING, compute_s=0.2, idle_s=0.35)

    assert second(flooded).startswith("There is too little compute to hide the all_reduce")


def test_exposed_communication_of_no_known_collective_is_admitted() -> None:
    unknown = replace(TALKING, collectives=())

    assert first(unknown) == "43 % of the step is exposed communication, against 40 % compute."
    assert second(unknown).startswith("The trace does not show which collective it is")


def test_idle_time_is_the_hosts_where_it_was_late() -> None:
    idle = replace(COMPUTING, compute_s=0.4, idle_s=0.5)

    assert first(idle) == "52 % of the step is idle time, against 41 % compute."
    assert second(replace(idle, host_wait_s=0.4)).startswith("The host hands work over too slowly")
    assert second(replace(idle, host_wait_s=0.1)).startswith("The traces do not blame the host")
    assert second(idle).startswith("The traces do not blame the host")


def test_copies_are_to_be_kept_in_place() -> None:
    copying = replace(COMPUTING, compute_s=0.5, copy_s=0.4)

    assert "the largest loss is copies (41 %)" in first(copying)
    assert "moved between host and device" in second(copying)


def test_memory_decides_what_compute_can_be_traded_for() -> None:
    def advice(peak: int, limit: int | None = 80 * GIB) -> str:
        return second(replace(COMPUTING, peak_memory_bytes=peak, memory_bytes=limit))

    assert advice(40 * GIB).startswith("Memory peaks at 40 GiB of 80 GiB, so there is room")
    assert advice(60 * GIB).startswith("Memory peaks at 60 GiB of 80 GiB, which leaves a little")
    assert advice(79 * GIB).startswith("Memory peaks at 79 GiB of 80 GiB, so compute that costs")
    assert advice(40 * GIB, None).startswith("Only less or faster compute helps now")


def test_steps_in_which_nothing_ran_are_said_to_be_empty() -> None:
    empty = Diagnosis(
        compute_s=0.0,
        exposed_communication_s=0.0,
        hidden_communication_s=0.0,
        copy_s=0.0,
        idle_s=0.0,
    )

    assert first(empty) == "Nothing ran in the profiled steps."
    assert list(diagnosis_lines(empty))


def test_the_numbers_tell_every_collective_with_its_groups() -> None:
    spread = replace(
        REDUCE, ranks=(0, 2, 4, 6, 8, 10), group_size=6, group_count=2, crosses_nodes=True
    )
    full = replace(
        TALKING,
        pipeline_bubble_s=0.1,
        host_wait_s=0.05,
        collectives=(spread, replace(REDUCE, call_count=1.0, bytes=None)),
        slowest_rank=3,
        slowest_over_mean=1.2,
        straggler=3,
        straggler_share=0.1,
        peak_memory_bytes=40 * GIB,
        memory_bytes=80 * GIB,
    )

    assert list(diagnosis_lines(full)) == [
        "a profiled step takes 1 s: compute 400 ms (40 %), exposed communication 430 ms (43 %), "
        "copies 20 ms (2 %), idle 150 ms (15 %), hidden communication 100 ms (10 %), "
        "pipeline bubble 100 ms (10 %), idle while the host was late 50 ms (5 %)",
        "all_reduce over 6 ranks (ranks 0 2 4 ... 10 and 1 more group, across nodes): 2 calls with "
        "953.7 MiB in all per rank, exposed 310 ms (31 %), hidden 200 ms (20 %)",
        "all_reduce over 4 ranks (ranks 0 to 3, within nodes): 1 call per rank, "
        "exposed 310 ms (31 %), hidden 200 ms (20 %)",
        "rank 3 computes longest, 1.20 times the mean of the ranks",
        "the others wait for rank 3 in 10 % of their step",
        "memory peaks at 40 GiB of 80 GiB",
    ]


PARTS = st.floats(0, 10)
SHARES = st.none() | st.floats(0, 1)


@given(
    st.builds(
        Diagnosis,
        compute_s=PARTS,
        exposed_communication_s=PARTS,
        hidden_communication_s=PARTS,
        copy_s=PARTS,
        idle_s=PARTS,
        pipeline_bubble_s=st.none() | PARTS,
        host_wait_s=st.none() | PARTS,
        collectives=st.lists(
            st.builds(
                CollectiveTime,
                kind=st.sampled_from(["all_reduce", "recv"]),
                group_size=st.none() | st.integers(1, 4096),
                ranks=st.none() | st.tuples(st.integers(0, 9), st.integers(10, 99)),
                group_count=st.integers(1, 9),
                crosses_nodes=st.none() | st.booleans(),
                call_count=st.floats(0.1, 1e4),
                bytes=st.none() | st.floats(0, 1e13),
                exposed_s=PARTS,
                hidden_s=PARTS,
            ),
            max_size=2,
        ).map(tuple),
        slowest_rank=st.just(7),
        slowest_over_mean=st.none() | st.floats(1, 4),
        straggler=st.just(7),
        straggler_share=SHARES,
        peak_memory_bytes=st.none() | st.integers(1, 10**12),
        memory_bytes=st.none() | st.integers(1, 10**12),
    )
)
def test_it_is_always_two_sentences(diagnosis: Diagnosis) -> None:
    told = sentences(diagnosis)

    assert len(told) == 2
    assert all(
        sentence.endswith(".") and sentence[0].isupper() | sentence[0].isdigit()
        for sentence in told
    )
    assert list(diagnosis_lines(diagnosis))
