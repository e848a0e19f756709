#!/usr/bin/env bash
# Shards that are asked to stop hand over beside training.
set -euo pipefail
exec tools/accept/e2e.sh drain.py
