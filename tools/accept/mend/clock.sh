#!/usr/bin/env bash
# Wall clocks of the test's own: no package is needed. Computing is replayed as timed waits.
set -euo pipefail
exec tools/accept/e2e.sh clock.py
