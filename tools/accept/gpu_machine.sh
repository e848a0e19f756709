#!/usr/bin/env bash
# For lines that judge a GPU, to be sourced in the repository's root: builds the bundle's program, with
# the GPU's shared object beside it, into $bundle, and says in $gpu which GPU it uses. Where the machine
# has none, the script ends: NOT RUN. One that cannot be used is a miss.
set -euo pipefail
# shellcheck source=tools/accept/has_gpu.sh
source tools/accept/has_gpu.sh
bazel build --ui_event_filters=-info,-debug //tools/bundle:starling-bundle //worker:libstarling_cuda.so >&2
place=$(mktemp -d "${TMPDIR:-/tmp}/starling-gpu.XXXXXX")
trap 'rm -rf "$place"' EXIT
bundle="$place/starling-bundle"
cp bazel-bin/tools/bundle/starling-bundle tools/bench/torch_peer.py "$place"
# Without the toolkit the target is empty, and what lies there is of an earlier build.
built=$(bazel query --ui_event_filters=-info,-debug --noshow_progress \
  'kind(cc_binary, //worker:libstarling_cuda.so)')
if [[ -n "$built" ]]; then cp bazel-bin/worker/libstarling_cuda.so "$place"; fi
if ! gpu=$("$bundle" check --gpu 2>"$place/why") || [[ -z "$gpu" ]]; then
  echo "figure: there is a GPU, but: ${gpu:-$(tail -n 1 "$place/why")}"
  exit 77
fi
echo "GPU: $gpu"

# value NAME LINE: of "figure WHAT NAME=VALUE ..."; nothing where it has none.
value() { sed -n "s/^figure .* $1=\\([^ ]*\\).*/\\1/p" <<<"$2"; }

at_least() { awk -v figure="${1:-none}" -v bound="$2" 'BEGIN { exit !(figure + 0 >= bound && figure != "none") }'; }

# need_torch: ends the script where there is no PyTorch to measure beside.
need_torch() {
  if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "figure: no PyTorch beside the GPU: there must be a python3 whose torch.cuda.is_available()"
    exit 77
  fi
}

# against_torch NET BOUND: training in bf16 beside PyTorch's in the same run; ends the script.
against_torch() {
  local output line ratio
  need_torch
  output=$("$bundle" check --only compute --on gpu --net "$1" --torch-python "$(command -v python3)" \
    --torch-library-path "${LD_LIBRARY_PATH:-}" 2>&1) || true # other precisions are not judged here
  echo "$output"
  line=$(grep "^figure $1-bf16 " <<<"$output" || true)
  ratio=$(value ratio "$line")
  echo "figure: ${ratio:-none} of PyTorch $(value version "$line"): $(value ours "$line") of $(value torch "$line") samples/s, on $gpu"
  at_least "$ratio" "$2"
  exit
}
