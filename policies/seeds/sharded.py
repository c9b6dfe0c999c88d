"""Shard everything, one sequence at a time: slow, and fits almost anywhere."""


def generate_config(workload, environment):
    """As many shards as share the batch evenly; ranks that are left over slice or cut the model."""
    ranks, batch = environment["world_size"], workload["global_batch"]
    shards = max(n for n in range(1, ranks + 1) if ranks % n == 0 and batch % n == 0)
    rest = ranks // shards
    heads = (workload["head_count"] or 1, workload["kv_head_count"] or 1)
    axis = "tp" if all(count % rest == 0 for count in heads) else "pp"
    if workload["phase"] == "inference":
        return {"dp_replicate": shards, "tp": rest, "micro_batch": 1}
    return {
        "dp_replicate": 1,
        "dp_shard": shards,
        "tp": 1,
        "pp": 1,
        axis: rest,
        "micro_batch": 1,
        "activation_checkpointing": "full",
    }
