#!/usr/bin/env bash
# Computing is replayed as timed waits.
set -euo pipefail
exec tools/accept/e2e.sh files.py
