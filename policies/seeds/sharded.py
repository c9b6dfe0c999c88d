"""Shard everything, one sequence at a time: slow, and fits almost anywhere."""


def generate_config(workload, environment):
    """As many shards as ranks, in powers of two that divide the batch."""
    ranks = 1
    while ranks * 2 <= environment["world_size"] and workload["global_batch"] % (ranks * 2) == 0:
        ranks *= 2
    return {
        "dp_replicate": 1,
        "dp_shard": ranks,
        "tp": 1,
        "pp": 1,
        "micro_batch": 1,
        "activation_checkpointing": "full",
    }
