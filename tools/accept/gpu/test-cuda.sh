#!/usr/bin/env bash
# All tests with the CUDA toolkit, with a GPU or without.
set -euo pipefail
built=$(bazel query --ui_event_filters=-info,-debug --noshow_progress \
  'kind(cc_binary, //worker:libstarling_cuda.so)')
if [[ -z "$built" ]]; then
  echo "figure: no CUDA toolkit 13 with cuDNN 9 here, or CUDA_HOME=none is set"
  exit 77
fi
exec tools/accept/whole_test.sh "with the CUDA toolkit"
