#!/usr/bin/env bash
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec torchrun --standalone --nproc-per-node="$RANK_COUNT" "$here/train.py"
