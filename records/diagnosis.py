"""What the traces of a trial say about where its time went, as a value that is kept with it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One kind of collective in groups of one shape, per profiled step.

    Groups are of one shape when their ranks are equally many and equally far apart, as those of
    one axis of a mesh. Calls and bytes are of a rank that takes part, at the mean; seconds are the
    mean over all traced ranks, as those of the step, where two collectives at once count twice.
    """

    kind: str
    group_size: int | None
    """Ranks of a group; None where not told."""
    ranks: tuple[int, ...] | None
    """Those of the first such group; None where not told."""
    group_count: int
    """Groups of this shape that traced ranks use."""
    crosses_nodes: bool | None
    """Whether any of them has ranks on two nodes; None where not told."""
    call_count: float
    bytes: float | None
    """As nccl-tests count them; None where not told."""
    exposed_s: float
    hidden_s: float

    @property
    def total_s(self) -> float:
        """Time in it, hidden or not."""
        return self.exposed_s + self.hidden_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Where the profiled steps of a trial went, seconds per step, mean over ranks and steps.

    Compute, exposed communication, copies (with fills, beside neither) and idle make up the step;
    hidden communication is within compute. What has no answer is None.
    """

    compute_s: float
    exposed_communication_s: float
    hidden_communication_s: float
    copy_s: float
    idle_s: float
    pipeline_bubble_s: float | None = None
    """Within exposed communication: in transfers between two ranks alone, waiting for a neighbour
    or receiving from it; None where none is sent."""
    host_wait_s: float | None = None
    """Within idle: the host had handed over no work, and did not wait for the device either."""
    collectives: tuple[CollectiveTime, ...] = ()
    """The largest few, by exposed time, then by all of their time."""
    slowest_rank: int | None = None
    """The rank that computes longest."""
    slowest_over_mean: float | None = None
    """Its compute time over the mean of all traced ranks."""
    straggler: int | None = None
    """The rank that the others wait for longest in collectives."""
    straggler_share: float | None = None
    """Part of their step in which the others wait for it and compute nothing."""
    peak_memory_bytes: int | None = None
    """Of the rank that needed most."""
    memory_bytes: int | None = None
    """What that peak may be; None on a host, which limits something else than the peak counts."""

    @property
    def step_s(self) -> float:
        """The whole profiled step."""
        return self.compute_s + self.exposed_communication_s + self.copy_s + self.idle_s
