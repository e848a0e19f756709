#!/usr/bin/env bash
# What a real worker computed, judged by an independent trainer.
set -euo pipefail
exec tools/accept/e2e.sh judge_steps_test.py --full
