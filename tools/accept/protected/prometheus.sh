#!/usr/bin/env bash
# A real Prometheus scrapes a training cluster.
set -euo pipefail
STARLING_PROMETHEUS="${XDG_CACHE_HOME:-$HOME/.cache}/starling/prometheus"
export STARLING_PROMETHEUS
if [[ ! -x "$STARLING_PROMETHEUS/prometheus" ]]; then
  echo "figure: no Prometheus: run tools/setup.sh --tests"
  exit 77
fi
exec tools/accept/e2e.sh prometheus_test.py
