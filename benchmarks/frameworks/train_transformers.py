"""Trains a small Llama on random tokens; every option is one of TrainingArguments."""

import cpu_fsdp  # noqa: F401 - lets accelerate shard on CPUs
import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

tokens = torch.randint(0, 512, (4096, 128), generator=torch.Generator().manual_seed(1))
samples = [{"input_ids": each, "labels": each} for each in tokens]
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(arguments.seed)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
    )
)
Trainer(model=model, args=arguments, train_dataset=samples).train()
