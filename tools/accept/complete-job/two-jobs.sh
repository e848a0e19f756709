#!/usr/bin/env bash
# Two jobs at once do not touch each other's bits.
set -euo pipefail
exec tools/accept/e2e.sh two_jobs.py
