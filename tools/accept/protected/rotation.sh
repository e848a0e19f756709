#!/usr/bin/env bash
# In one process over real gRPC, with a change of authorities; then with real daemons.
set -euo pipefail
bazel test --nocache_test_results --test_output=errors //tests/integration:rotation_test
exec tools/accept/e2e.sh protected_test.py --rotations 5 --epochs 12 \
  Protected.test_certificates_are_rotated_under_load
