#!/bin/bash
# Llama-3.1-8B by Megatron-LM on one node with 8 GPUs, with mock data.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --no-rope-fusion
    --seq-length 4096
    --max-position-embeddings 4096
    --attention-dropout 0.0
    --hidden-dropout 0.0
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --train-iters 500000
    --lr 3e-4
    --min-lr 3e-5
    --lr-warmup-iters 2000
    --bf16
    --mock-data
    --tokenizer-type NullTokenizer
    --vocab-size 128256
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 2
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    --save checkpoints --save-interval 1000 --log-interval 100
