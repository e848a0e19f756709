#!/usr/bin/env bash
# The build stage: from a bare Debian 12 and these sources to stripped programs.
#
#   build.sh OUT
#
# Leaves OUT/server and OUT/worker, each with bin/ and `packages`, the Debian packages that the
# programs need to run. Needs root (it installs compilers) and Debian's package servers.
set -euo pipefail
if (($# != 1)); then
  echo "usage: build.sh OUT" >&2
  exit 2
fi
out=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tools/setup.sh
bazel build --noshow_progress //server/coordinator:starling-coordinator //server/shard:starling-ps \
  //worker:starling-worker //tools/cli:starling
mkdir -p "$out/server/bin" "$out/worker/bin"
install --strip -t "$out/server/bin" \
  bazel-bin/server/coordinator/starling-coordinator bazel-bin/server/shard/starling-ps
install --strip -t "$out/worker/bin" bazel-bin/worker/starling-worker bazel-bin/tools/cli/starling
bazel shutdown

for image in server worker; do
  deploy/containers/packages.sh "$out/$image/bin"/* >"$out/$image/packages"
done
