#!/bin/bash
# Llama-3.1-8B served by SGLang on one node with 8 GPUs.
python -m sglang.launch_server --model-path model --tp-size 2 --dp-size 4 \
    --chunked-prefill-size 8192 --schedule-policy lpm --port 30000
