#!/usr/bin/env bash
# The bundle: made by one command, small enough, and its CPU part run in a root with only the files
# of Debian's package libc6, in separate namespaces without a network.
set -euo pipefail
if ! unshare --user --map-root-user --mount --pid --net --fork true 2>/dev/null; then
  echo "figure: needs user namespaces (kernel.unprivileged_userns_clone)"
  exit 77
fi
place=$(mktemp -d "${TMPDIR:-/tmp}/starling-bundle.XXXXXX")
trap 'rm -rf --one-file-system "$place"' EXIT
made=$(tools/gpu_bundle.sh "$place/bundle" | tail -n 1)
echo "$made"
megabytes=$(sed -nE 's/^bundle: .*, ([0-9]+) bytes .*/\1/p' <<<"$made" |
  awk '{ printf "%.1f", $1 / 1e6 }')

# shellcheck source=tools/accept/bare_root.sh
source tools/accept/bare_root.sh
root="$place/root"
bare_root "$root"
cp -r "$place/bundle" "$root/bundle"

status=0
in_bare_root "$root" /bundle/starling-unpack check >"$place/output" 2>&1 || status=$?
cat "$place/output"
last=$(tail -n 1 "$place/output")
echo "figure: $megabytes MB; on libc6 alone: ${last#bundle: }" | sed 's/NOT RUN: .*/NOT RUN/'
((status == 0))
[[ "$last" == "bundle: CPU: 3 passed, 0 failed."* ]]
# The GPU's shared object, if there is one, was opened, too: only the driver is missing.
[[ ! -f "$root/bundle/libstarling_cuda.so" || "$last" == *"no NVIDIA driver is installed"* ]]
