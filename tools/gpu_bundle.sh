#!/usr/bin/env bash
# Builds the bundle that checks and measures a machine where nothing is installed
# (docs/gpu_bundle.md): one folder to copy there, whose run_gpu.sh does everything.
#
#   tools/gpu_bundle.sh DIR
#
# DIR must not exist, or be empty. Fails if the folder has 60 MB or more, or if a program in it
# needs a library that neither the bundle nor the system's C library brings. The last line gives
# its size.
set -euo pipefail

if (($# != 1)) || [[ "$1" == -* ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
mkdir -p "$1"
bundle=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -n "$(ls -A "$bundle")" ]]; then
  echo "gpu_bundle: $bundle is not empty: expected a new folder" >&2
  exit 2
fi
most_bytes=60000000

bazel build --ui_event_filters=-info,-debug //tools/bundle:starling-bundle \
  //tools/bundle:starling-unpack \
  //worker:libstarling_cuda.so >&2

built=bazel-bin/tools/bundle
install -m 755 "$built/starling-bundle" "$built/starling-unpack" tools/bundle/run_gpu.sh "$bundle"
install -m 644 tools/bench/torch_peer.py "$bundle"
programs=("$bundle/starling-bundle")
# Without the toolkit the target is empty, and an existing output is from an earlier build.
if [[ -n "$(bazel query --ui_event_filters=-info,-debug --noshow_progress \
  'kind(cc_binary, //worker:libstarling_cuda.so)')" ]]; then
  install -m 755 bazel-bin/worker/libstarling_cuda.so "$bundle"
  programs+=("$bundle/libstarling_cuda.so")
else
  echo "gpu_bundle: no CUDA toolkit here: the bundle has no libstarling_cuda.so," \
    "and uses no GPU" >&2
fi

commit=$(git rev-parse --verify --quiet HEAD) || commit="unknown"
[[ -z "$(git status --porcelain 2>/dev/null)" ]] || commit+=" with changes"
echo "$commit" >"$bundle/COMMIT"

# What the C library's package brings, and NVIDIA's libraries, which a machine with a GPU has.
from_elsewhere='^(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv'
from_elsewhere+='|libcuda|libcudart|libcudnn.*|libcublas|libcublasLt|libnvrtc)\.so'

# needed FILE...: the sonames that the files need, except for those.
needed() {
  readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
    grep -vE "$from_elsewhere" || true
}

# Copies all needed libraries, transitively, compressed.
mkdir "$bundle/packed"
mapfile -t missing < <(needed "${programs[@]}")
while ((${#missing[@]} > 0)); do
  files=()
  for soname in "${missing[@]}"; do
    file=$(/sbin/ldconfig -p | sed -n "s|^\s*${soname//./\\.} .*x86-64.* => ||p" | head -n 1)
    if [[ -z "$file" ]]; then
      echo "gpu_bundle: $soname is needed, and not found here" >&2
      exit 1
    fi
    gzip -9 --no-name --stdout "$(readlink -f "$file")" >"$bundle/packed/$soname.gz"
    files+=("$file")
  done
  mapfile -t missing < <(needed "${files[@]}" | while read -r soname; do
    if [[ ! -f "$bundle/packed/$soname.gz" ]]; then echo "$soname"; fi
  done)
done

(cd "$bundle" && du -b --apparent-size -a . | sort -k 2 | sed 's/^/  /') >&2
bytes=$(find "$bundle" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
if ((bytes >= most_bytes)); then
  echo "gpu_bundle: $bytes bytes in $bundle, expected less than $most_bytes" >&2
  exit 1
fi
echo "bundle: $bundle, $bytes bytes (less than $most_bytes)"
