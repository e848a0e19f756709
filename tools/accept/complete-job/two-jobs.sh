#!/usr/bin/env bash
# Two concurrent jobs do not change each other's bits.
set -euo pipefail
exec tools/accept/e2e.sh two_jobs.py
