#!/usr/bin/env bash
# One clock for daemons whose clocks differ, judged by the trace checker.
set -euo pipefail
exec tools/accept/e2e.sh trace_test.py --full
