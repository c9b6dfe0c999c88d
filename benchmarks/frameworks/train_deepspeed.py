"""Trains a small Llama on random tokens with a DeepSpeed engine."""

import argparse

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=100)
arguments = parser.parse_args()
deepspeed.init_distributed()
torch.manual_seed(0)
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
tokens = torch.randint(0, 512, (4096, 128), generator=torch.Generator().manual_seed(1))
engine, _, loader, _ = deepspeed.initialize(
    args=arguments, model=model, model_parameters=model.parameters(), training_data=list(tokens)
)
while engine.global_steps < arguments.steps:
    for batch in loader:
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()
        if engine.global_steps >= arguments.steps:
            break
