#!/usr/bin/env bash
# A local cluster goes on by itself after every process of it was killed at once.
set -euo pipefail
exec tools/accept/e2e.sh all_gone.py
