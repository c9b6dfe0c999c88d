#!/usr/bin/env bash
# A small decoder on synthetic data, as one would start it on CPUs.
export DECOUPLE_GCLOUD=TRUE
python -m maxtext.trainers.pre_train.train run_name=tiny hardware=cpu skip_jax_distributed_system=true \
  dataset_type=synthetic base_output_directory=/tmp/maxtext enable_checkpointing=false \
  enable_goodput_recording=false log_config=false dtype=float32 base_emb_dim=128 base_mlp_dim=352 \
  base_num_query_heads=4 base_num_kv_heads=4 head_dim=32 base_num_decoder_layers=2 \
  vocab_size=512 max_target_length=128 per_device_batch_size=4 "$@"
