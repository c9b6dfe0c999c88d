"""Step time and memory of a decoder's training, for landscapes: nothing of it is cclsearch's model.

Matrices run in whole waves of tiles, other operators at the speed of memory, collectives as rings,
micro-batches through uneven stages; a launch slows down where memory is nearly full.
"""

import math
from dataclasses import dataclass
from typing import Final

from records.workload import Workload

LIBRARIES_BYTES: Final = 2.5 * 2**30
"""What CUDA and NCCL take of a device's memory, and PyTorch does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of eight accelerators; `cores` work on tiles of a matrix at the same time."""

    node_count: int
    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float
    cores: int
    nvlink_bytes_per_s: float
    network_bytes_per_s: float
    hop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One configuration of a decoder's training on a cluster."""

    work: Workload
    cluster: Cluster
    tp: int
    pp: int
    dp: int
    micro_batch: int
    recompute: str
    zero_stage: int
    chunks: int

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.work.sequence_length

    @property
    def micro_count(self) -> int:
        """Micro-batches of a step on one replica."""
        return self.work.global_batch // (self.dp * self.micro_batch)

    @property
    def layer_parameters(self) -> float:
        """Parameters of one layer, over all ranks."""
        hidden, ffn = self.work.hidden_size or 0, self.work.ffn_size or 0
        return 2.5 * hidden**2 + 3.0 * hidden * ffn  # grouped queries, a gate

    def matrix_s(self, columns: float, depth: float) -> float:
        """Multiply in tiles of 128 x 256: the last wave takes as long as a full one."""
        tiles = math.ceil(self.tokens / 128) * math.ceil(columns / 256)
        waves = math.ceil(tiles / self.cluster.cores)
        tile_s = 2 * 128 * 256 * depth / (self.cluster.flops_per_s / self.cluster.cores)
        return 4e-6 + waves * tile_s / (0.9 - 60 / depth)

    def ring_s(self, size: float, ranks: int, span: int) -> float:
        """Reduce-scatter and gather over neighbours, `span` apart from the first to the last."""
        if ranks == 1:
            return 0.0
        cluster, hops = self.cluster, 2 * (ranks - 1)
        crosses = span > 8
        speed = cluster.network_bytes_per_s if crosses else cluster.nvlink_bytes_per_s
        return hops * (cluster.hop_s * (6 if crosses else 1) + size / ranks / speed)

    def layer_s(self) -> tuple[float, float]:
        """Forward and backward pass of one layer on one micro-batch."""
        hidden, ffn, tp = self.work.hidden_size or 0, self.work.ffn_size or 0, self.tp
        matrices = (
            self.matrix_s(1.25 * hidden / tp, hidden)
            + self.matrix_s(hidden, hidden / tp)
            + self.matrix_s(2 * ffn / tp, hidden)
            + self.matrix_s(hidden, ffn / tp)
        )
        scores = 2 * self.tokens * self.work.sequence_length * hidden / tp
        attention = scores / (0.45 * self.cluster.flops_per_s)
        touched = 2 * self.tokens * (9 * hidden + (8 * hidden + 5 * ffn) / tp)
        forward = matrices + attention + touched / self.cluster.memory_bytes_per_s
        exchanged = 2 * self.ring_s(2 * self.tokens * hidden, tp, tp)
        again = {"none": 0.0, "selective": attention, "full": forward + exchanged}[self.recompute]
        return forward + exchanged, 2.1 * forward + 0.9 * exchanged + again

    def step_s(self) -> float:
        """All micro-batches through uneven stages, gradients, and the update."""
        work, cluster = self.work, self.cluster
        forward, backward = self.layer_s()
        layers = (work.layer_count or 0) / self.pp
        own = self.layer_parameters * layers / self.tp
        head = 3.3 * self.matrix_s((work.vocab_size or 0) / self.tp, work.hidden_size or 0)
        gathered = 0.0
        if self.zero_stage == 3:
            each = self.ring_s(2 * own, self.dp, self.tp * self.dp)
            gathered = max(0.15 * each, each - 0.7 * layers * forward)
        stage = layers * (forward + backward) + gathered
        sent = 2 * self.tokens * (work.hidden_size or 0) / cluster.network_bytes_per_s / self.tp
        slowest = stage + max(head, sent if self.pp > 1 else 0.0)
        filled = (self.pp - 1) * (stage / self.chunks + sent * self.chunks)
        pipeline = self.micro_count * slowest + filled + 2e-4 * self.chunks * self.micro_count
        reduced = self.ring_s((2 if self.zero_stage else 4) * own, self.dp, self.tp * self.dp)
        exposed = max(0.1 * reduced, reduced - 0.6 * layers * backward)
        sharded = self.dp if self.zero_stage else 1
        update = 18 * own / sharded / cluster.memory_bytes_per_s
        crowded = max(0.0, self.needed_bytes() / cluster.memory_bytes - 0.93)
        return (pipeline + exposed + update) * (1 + 2.5 * crowded) + 0.01

    def needed_bytes(self) -> float:
        """What the first stage or the last needs, with what libraries take."""
        work, tp = self.work, self.tp
        hidden, layers = work.hidden_size or 0, (work.layer_count or 0) / self.pp
        edge = (work.vocab_size or 0) * hidden / tp
        own = self.layer_parameters * layers / tp + edge
        over = [self.dp if self.zero_stage >= stage else 1 for stage in (3, 2, 1)]
        state = own * (2 / over[0] + 4 / over[1] + 12 / over[2])
        each = {"none": 18 + 4 * (work.ffn_size or 0) / hidden, "selective": 26.0, "full": 2.0}
        kept = self.tokens * hidden * each[self.recompute] * layers / tp
        deep = min(self.micro_count, self.pp) * (1 + (self.chunks - 1) / 4)
        logits = 6.0 * self.tokens * (work.vocab_size or 0) / tp if self.pp == 1 else 0.0
        working = 40.0 * self.tokens * hidden / tp + (4 * own / layers if over[0] > 1 else 0)
        return (state + kept * deep + max(logits, working)) * 1.06 + LIBRARIES_BYTES
