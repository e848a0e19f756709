#!/usr/bin/env bash
# Runs promtool's checks of the alert rules, and their unit tests.
set -euo pipefail
cd deploy/monitoring
# Each alert needs a case, and a row in the docs.
sed -n 's/^ *- alert: //p' alerts.yaml | while read -r alert; do
  grep -q "alertname: $alert\$" alerts_test.yaml ||
    { echo "no case of $alert in alerts_test.yaml" && exit 1; }
  grep -q "^| \`$alert\` |" ../../docs/metrics.md ||
    { echo "no $alert in docs/metrics.md" && exit 1; }
done
if [[ ! -x "${STARLING_PROMETHEUS:-}/promtool" ]]; then
  echo "SKIPPED: no promtool: run tools/setup.sh --tests, and set STARLING_PROMETHEUS" \
    "(tools/test.sh does both)"
  exit 0
fi
"$STARLING_PROMETHEUS/promtool" check rules --lint=all --lint-fatal alerts.yaml
"$STARLING_PROMETHEUS/promtool" test rules alerts_test.yaml
