#!/usr/bin/env bash
# Recorded spans: communication is hidden behind computing.
set -euo pipefail
exec tools/accept/e2e.sh spans_test.py --full
