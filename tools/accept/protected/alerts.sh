#!/usr/bin/env bash
# The alert rules by promtool's own checks and unit tests.
set -euo pipefail
STARLING_PROMETHEUS="${XDG_CACHE_HOME:-$HOME/.cache}/starling/prometheus"
export STARLING_PROMETHEUS
if [[ ! -x "$STARLING_PROMETHEUS/promtool" ]]; then
  echo "figure: no promtool: run tools/setup.sh --tests"
  exit 77
fi
deploy/monitoring/alerts_test.sh
echo "figure: $(grep -c '^ *- alert:' deploy/monitoring/alerts.yaml) rules, all cases pass"
