#!/usr/bin/env bash
# What is wrong with copies and checkpoints shows in each place where people look, and goes away.
# Without Prometheus no alert is judged: a miss.
set -euo pipefail
STARLING_PROMETHEUS="${XDG_CACHE_HOME:-$HOME/.cache}/starling/prometheus"
export STARLING_PROMETHEUS
exec tools/accept/e2e.sh seen.py
