#!/usr/bin/env bash
# The bundle: made by one command, small enough, and its CPU part run in a root that has nothing but the
# files of Debian's package libc6, in namespaces of its own without a network.
set -euo pipefail
if ! unshare --user --map-root-user --mount --pid --net --fork true 2>/dev/null; then
  echo "figure: needs user namespaces (kernel.unprivileged_userns_clone)"
  exit 77
fi
place=$(mktemp -d "${TMPDIR:-/tmp}/starling-bundle.XXXXXX")
trap 'rm -rf --one-file-system "$place"' EXIT
made=$(tools/gpu_bundle.sh "$place/bundle" | tail -n 1)
echo "$made"
megabytes=$(sed -nE 's/^bundle: .*, ([0-9]+) bytes .*/\1/p' <<<"$made" | awk '{ printf "%.1f", $1 / 1e6 }')

# The root: that package's files and links, the bundle, and mount points for what the kernel shows. No
# shell is in it, nor any other program of use.
root="$place/root"
mkdir -p "$root/proc" "$root/dev" "$root/tmp"
touch "$root/dev/null"
dpkg --listfiles libc6 | while read -r path; do
  if [[ -d "$path" ]]; then continue; fi
  mkdir -p "$root${path%/*}"
  cp -P --preserve=mode "$path" "$root$path"
done
programs=$(find "$root" -type f -perm /111 ! -name '*.so*')
if [[ -n "$programs" ]]; then
  echo "figure: the root has programs: $programs"
  exit 1
fi
echo "the root has $(find "$root" -name '*.so*' ! -type d | wc -l) libraries of libc6 and no program"
cp -r "$place/bundle" "$root/bundle"

# In the namespaces, only loopback has to be brought up from here.
status=0
# shellcheck disable=SC2016
unshare --user --map-root-user --mount --pid --net --fork bash -euc '
  ip link set lo up
  mount -t proc proc "$1/proc"
  mount --bind /dev/null "$1/dev/null"
  exec env -i "$(command -v chroot)" "$1" /bundle/starling-unpack check' bash "$root" >"$place/output" 2>&1 || status=$?
cat "$place/output"
last=$(tail -n 1 "$place/output")
echo "figure: $megabytes MB; on libc6 alone: ${last#bundle: }" | sed 's/NOT RUN: .*/NOT RUN/'
((status == 0))
[[ "$last" == "bundle: CPU: 3 passed, 0 failed."* ]]
# The GPU's shared object was opened, too, where there is one: what is missing is the driver.
[[ ! -f "$root/bundle/libstarling_cuda.so" || "$last" == *"no NVIDIA driver is installed"* ]]
