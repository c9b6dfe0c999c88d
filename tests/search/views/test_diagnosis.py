"""What a diagnosis says, rule by rule, always in two sentences, and where a person reads it."""

import re
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.objective import scoring
from records.store.store import Store
from records.trial import CollectiveTime, Diagnosis
from search.loop.leader import study_leader
from search.loop.study_result import find
from search.report.data import StudyRecord, report_lines
from search.views.diagnosis import diagnosis_lines, diagnosis_words

GIB = 2**30
NO_TIME = dict.fromkeys(("hidden_communication_s", "copy_s", "idle_s"), 0.0)
EMPTY = Diagnosis(compute_s=0.0, exposed_communication_s=0.0, **NO_TIME)
COMPUTING = replace(
    EMPTY,
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


COMMUNICATING = "43 % of the step is exposed communication"
IDLE = replace(COMPUTING, compute_s=0.4, idle_s=0.5)
COPYING = replace(COMPUTING, compute_s=0.5, copy_s=0.4)


def talking(**changes: object) -> Diagnosis:
    """Exposed communication in one collective with these changes."""
    return replace(TALKING, collectives=(replace(REDUCE, **changes),))


@pytest.mark.parametrize(
    ("diagnosis", "words"),
    [
        (TALKING, f"{COMMUNICATING}, mostly all_reduce over 4 ranks (31 %), against 40 % compute."),
        (
            replace(TALKING, compute_s=0.6, exposed_communication_s=0.35, idle_s=0.03),
            "60 % of the step is compute, and the largest loss is exposed communication (35 %), "
            "mostly all_reduce over 4 ranks (31 %).",
        ),
        (talking(exposed_s=0.15), f"{COMMUNICATING}, most in all_reduce over 4 ranks (15 %), "),
        (
            replace(TALKING, pipeline_bubble_s=0.3),
            f"{COMMUNICATING}, mostly waiting for and receiving from neighbours (30 %), ",
        ),
        (replace(TALKING, collectives=()), f"{COMMUNICATING}, against 40 % compute."),
        (COMPUTING, "90 % of the step is compute, and no other part takes a tenth of it."),
        (IDLE, "52 % of the step is idle time, against 41 % compute."),
        (COPYING, "51 % of the step is compute, and the largest loss is copies (41 %)."),
        (EMPTY, "Nothing ran in the profiled steps."),
    ],
)
def test_the_first_sentence_says_where_the_step_goes(diagnosis: Diagnosis, words: str) -> None:
    assert sentences(diagnosis)[0].startswith(words)


@pytest.mark.parametrize(
    ("diagnosis", "words"),
    [
        (
            replace(TALKING, slowest_rank=2, slowest_over_mean=1.18, pipeline_bubble_s=0.4),
            "Rank 2 computes 18 % longer than the mean, so the others",
        ),
        (
            replace(TALKING, compute_s=0.1, idle_s=0.45, slowest_rank=2, slowest_over_mean=1.18),
            "The traces do not blame the host",
        ),
        (
            replace(TALKING, pipeline_bubble_s=0.3),
            "Stages wait for each other, so use more and smaller micro batches",
        ),
        (
            replace(TALKING, straggler=1, straggler_share=0.2, slowest_over_mean=1.01),
            "The others wait for rank 1 in 20 % of their step although",
        ),
        (talking(crosses_nodes=True), "The all_reduce crosses nodes, so keep its ranks within one"),
        (
            talking(call_count=64.0, bytes=64.0 * 4096),
            "It is 64 calls of 4 KiB each, so fewer and larger ones",
        ),
        (
            talking(exposed_s=0.39, hidden_s=0.01),
            "Only 2 % of the all_reduce overlaps with compute, so start it earlier",
        ),
        (
            replace(TALKING, compute_s=0.2, idle_s=0.35),
            "There is too little compute to hide the all_reduce",
        ),
        (replace(TALKING, collectives=()), "The trace does not show which collective it is"),
        (replace(IDLE, host_wait_s=0.4), "The host hands work over too slowly"),
        (replace(IDLE, host_wait_s=0.1), "The traces do not blame the host"),
        (IDLE, "The traces do not blame the host"),
        (COPYING, "Look for tensors that are moved between host and device"),
        *(
            (replace(COMPUTING, peak_memory_bytes=peak * GIB, memory_bytes=80 * GIB), words)
            for peak, words in (
                (40, "Memory peaks at 40 GiB of 80 GiB, so there is room"),
                (60, "Memory peaks at 60 GiB of 80 GiB, which leaves a little"),
                (79, "Memory peaks at 79 GiB of 80 GiB, so compute that costs"),
            )
        ),
        (
            replace(COMPUTING, peak_memory_bytes=40 * GIB),
            "Only less or faster compute helps now",
        ),
    ],
)
def test_the_second_sentence_says_what_to_do_about_it(diagnosis: Diagnosis, words: str) -> None:
    assert sentences(diagnosis)[1].startswith(words)


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
BYTES = st.none() | st.integers(1, 10**12)
COLLECTIVES = st.builds(
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
)
TIMES = ("compute", "exposed_communication", "hidden_communication", "copy", "idle")


@given(
    st.builds(
        Diagnosis,
        **{f"{name}_s": PARTS for name in TIMES},
        **{f"{name}_s": st.none() | PARTS for name in ("pipeline_bubble", "host_wait")},
        collectives=st.lists(COLLECTIVES, max_size=2).map(tuple),
        slowest_rank=st.just(7),
        slowest_over_mean=st.none() | st.floats(1, 4),
        straggler=st.just(7),
        straggler_share=SHARES,
        peak_memory_bytes=BYTES,
        memory_bytes=BYTES,
    )
)
def test_it_is_always_two_sentences(diagnosis: Diagnosis) -> None:
    told = sentences(diagnosis)

    assert len(told) == 2
    assert all(re.fullmatch(r"[A-Z\d].*\.", sentence) for sentence in told)
    assert list(diagnosis_lines(diagnosis))


def test_the_report_says_where_the_time_of_the_best_goes(traced_store) -> None:
    with closing(Store(traced_store())) as store:
        (row,) = store.studies()
        led = study_leader(row, store)
        finding = find(led, [], scoring(row.study.objective), row.study.measure, "why")
        told = dict(report_lines(finding, StudyRecord.of(row.id, store), ""))

    assert told["where time goes"].startswith(
        "46 % of the step is compute, and the largest loss is exposed communication (36 %)"
    )
