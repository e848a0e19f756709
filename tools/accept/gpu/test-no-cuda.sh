#!/usr/bin/env bash
# All tests as on a machine without a CUDA toolkit: its folders are hidden, nothing of it is built,
# and no test program contains any of it. Runs in a separate mount namespace with its own build
# server.
set -euo pipefail
quiet=("--ui_event_filters=-info,-debug" --noshow_progress)
if [[ "${1:-}" != hidden ]]; then
  shopt -s nullglob
  folders=(/usr/local/cuda*)
  if [[ -n "${CUDA_HOME:-}" && "$CUDA_HOME" != none ]]; then folders+=("$CUDA_HOME"); fi
  export HIDE="${folders[*]}"
  bazel shutdown # the running server sees the toolkit
  trap 'bazel shutdown' EXIT
  user=()
  if ((EUID != 0)); then user=(--map-root-user); fi
  export CUDA_HOME=none # makes the build look again instead of using what it found before
  unshare --mount "${user[@]}" "$0" hidden
  exit
fi

for folder in $HIDE; do
  if [[ -d "$folder" && ! -L "$folder" ]]; then mount -t tmpfs none "$folder"; fi
done
for folder in $HIDE; do
  if [[ -e "$folder/bin/nvcc" ]]; then
    echo "figure: $folder cannot be hidden"
    exit 77
  fi
done
built=$(bazel query "${quiet[@]}" 'kind(cc_binary, //worker:libstarling_cuda.so)')
if [[ -n "$built" ]]; then
  echo "figure: libstarling_cuda.so is built without the toolkit in $HIDE"
  exit 1
fi
bazel build "${quiet[@]}" --build_tests_only //... >&2
root=$(bazel info "${quiet[@]}" execution_root)
programs=0
while read -r file; do
  [[ "$(head -c 4 "$root/$file" | tr -d '\0')" == $'\x7fELF' ]] || continue # a script
  programs=$((programs + 1))
  needed=$(readelf -d "$root/$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  if grep -qE '^lib(cuda|cudart|cudnn|cublas|cublasLt|nvrtc|starling_cuda)[._]' <<<"$needed" ||
    grep -q __cudaRegisterFatBinary "$root/$file"; then # from the linked-in runtime
    echo "figure: $file has CUDA in it"
    exit 1
  fi
done < <(bazel cquery "${quiet[@]}" 'tests(//...)' --output=starlark \
  --starlark:expr='"\n".join([file.path for file in target.files.to_list()])')
if ((programs < 100)); then
  echo "figure: looked at $programs test programs only, expected 100 or more"
  exit 1
fi
tools/accept/whole_test.sh \
  "with the toolkit's folders hidden; none of $programs test programs has CUDA in it"
