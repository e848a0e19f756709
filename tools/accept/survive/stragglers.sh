#!/usr/bin/env bash
# No BSP step waits for a worker that is ten times slower, where the job has a backup worker.
set -euo pipefail
exec tools/accept/e2e.sh stragglers.py
