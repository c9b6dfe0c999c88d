"""The loss of a micro-batch, from whole logits or from slices of the vocabulary."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F


class MicroBatchLoss:
    """One micro-batch's part of the mean loss: parts add up to the mean over all tokens."""

    def __init__(self, micro_batch_count: int, vocabulary: DeviceMesh | None) -> None:
        """Take the ranks that each hold a slice of the vocabulary; `None` if it is whole."""
        self.micro_batch_count = micro_batch_count
        self._vocabulary = vocabulary

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Take logits (sequences, length, vocabulary or this rank's slice of it)."""
        logits = logits.flatten(0, 1).float()
        if self._vocabulary is None:
            return F.cross_entropy(logits, targets.flatten()) / self.micro_batch_count
        whole = DTensor.from_local(logits, self._vocabulary, [Shard(1)], run_check=False)
        loss = F.cross_entropy(whole, targets.flatten())
        assert isinstance(loss, DTensor)
        # Divided last: a schedule that splits backward passes detaches it, which no view allows.
        return loss.full_tensor() / self.micro_batch_count

    def sliced(self) -> AbstractContextManager[None]:
        """Keep the vocabulary sliced within the block, which spans forward and backward."""
        return nullcontext() if self._vocabulary is None else loss_parallel()
