#!/usr/bin/env bash
# A healthy job beside neighbours that misbehave.
set -euo pipefail
exec tools/accept/e2e.sh neighbours.py
