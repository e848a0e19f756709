#!/usr/bin/env bash
# 300 small jobs, changed, cancelled and disturbed at random: all values are readable and are those
# that were trained.
set -euo pipefail
exec tools/accept/e2e.sh values.py --jobs 300
