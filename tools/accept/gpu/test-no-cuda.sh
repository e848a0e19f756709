#!/usr/bin/env bash
# All tests as where there is no CUDA toolkit: nothing of it is built, and no test links any of it.
set -euo pipefail
export CUDA_HOME=none
quiet=("--ui_event_filters=-info,-debug" --noshow_progress)
if [[ -n "$(bazel query "${quiet[@]}" 'kind(cc_binary, //worker:libstarling_cuda.so)')" ]]; then
  echo "figure: libstarling_cuda.so is built with CUDA_HOME=none"
  exit 1
fi
bazel build "${quiet[@]}" --build_tests_only //... >&2
root=$(bazel info "${quiet[@]}" execution_root)
programs=0
while read -r file; do
  needed=$(readelf -d "$root/$file" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  [[ -n "$needed" ]] || continue # a script
  programs=$((programs + 1))
  if grep -qE '^lib(cuda|cudart|cudnn|cublas|cublasLt|nvrtc|starling_cuda)[._]' <<<"$needed"; then
    echo "figure: $file links $(grep -E '^lib(cu|nvrtc|starling_cuda)' <<<"$needed" | tr '\n' ' ')"
    exit 1
  fi
done < <(bazel cquery "${quiet[@]}" --output=files 'tests(//...)')
if ((programs < 100)); then
  echo "figure: looked at $programs test programs only, expected 100 or more"
  exit 1
fi
exec tools/accept/whole_test.sh "without it; none of $programs test programs links CUDA"
