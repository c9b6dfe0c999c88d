"""A configuration of TorchTitan 0.3 that trains on CPUs, where flex attention has no backward."""

from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel


def llama3_cpu():
    """Return the debug model with torch's own attention, for the torch of the package index."""
    config = llama3_debugmodel()
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.parallelism.spmd_backend = "partial_dtensor"
    return config
