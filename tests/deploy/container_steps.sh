#!/usr/bin/env bash
# The steps of deploy/containers/Containerfile in unpacked Debian roots, without a container engine,
# and then the command lines of deploy/kubernetes in them (contained_cluster.py).
#
#   container_steps.sh PYTHON
#
# PYTHON is the judges' (tools/setup.sh --tests). Needs root, mmdebstrap, the machine's apt
# configuration, and 6 GB. Builds from the sources of this checkout with the user's Bazel cache, so
# it takes minutes after an earlier build and an hour otherwise. Exit status: 0 all steps succeeded;
# 77 could not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ $EUID -ne 0 ]] || ! command -v mmdebstrap >/dev/null; then
  echo "container_steps: needs root and mmdebstrap (tools/setup.sh --tests)" >&2
  exit 77
fi
# A mount namespace, so that mounts end with the script.
if [[ "${STARLING_STEPS_MOUNTS:-}" != own ]]; then
  STARLING_STEPS_MOUNTS=own exec unshare --mount --propagation private -- \
    tests/deploy/container_steps.sh "$@"
fi
python=$1
roots=$(mktemp -d "${TMPDIR:-/tmp}/starling-containers.XXXXXX")
cleanup() {
  local place
  while read -r place; do umount -l "$place"; done < <(
    awk -v r="$roots/" 'index($5, r) == 1 { print $5 }' /proc/self/mountinfo | sort -r
  )
  rm -rf --one-file-system "$roots"
}
trap cleanup EXIT

# new_root NAME: a bare Debian 12, from which the images start.
new_root() {
  local root="$roots/$1" place
  if [[ -d "$roots/base" ]]; then
    cp -a "$roots/base" "$root"
  else
    mmdebstrap --quiet --variant=minbase bookworm "$root" >&2
    rm "$root/etc/apt/sources.list"
    cp -rL /etc/apt/. "$root/etc/apt/"
    if [[ -d /usr/local/share/ca-certificates && -d /etc/ssl/certs ]]; then
      mkdir -p "$root/etc/ssl"
      cp -rL /etc/ssl/certs "$root/etc/ssl/" # for package servers behind TLS
    fi
    return
  fi
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  for place in proc dev sys; do mount --rbind "/$place" "$root/$place"; done
}

# inside NAME COMMAND...: runs in the root, without this machine's environment.
inside() {
  local root="$roots/$1"
  shift
  env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    chroot "$root" "$@"
}

new_root base
echo "== build"
new_root build
mkdir -p "$roots/build/src" "$roots/build/root/.cache/starling/bazel" "$HOME/.cache/starling/bazel"
git ls-files -z | tar --null --files-from=- -cf - | tar -C "$roots/build/src" -xf -
mount --bind "$HOME/.cache/starling/bazel" "$roots/build/root/.cache/starling/bazel"
inside build /src/deploy/containers/build.sh /out

for image in server worker; do
  echo "== $image"
  new_root "$image"
  mkdir "$roots/$image/out" "$roots/$image/containers"
  mount --bind -o ro "$roots/build/out" "$roots/$image/out"
  mount --bind -o ro deploy/containers "$roots/$image/containers"
  inside "$image" /containers/runtime.sh "/out/$image"
  umount "$roots/$image/out" "$roots/$image/containers"
  rmdir "$roots/$image/out" "$roots/$image/containers"
  for place in proc sys dev; do umount -l "$roots/$image/$place"; done
  echo "size: starling-$image $(du -sm --one-file-system "$roots/$image" | cut -f1) MB"
done

echo "== run"
PYTHONDONTWRITEBYTECODE=1 "$python" tests/deploy/contained_cluster.py "$roots"
