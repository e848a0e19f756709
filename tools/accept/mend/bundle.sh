#!/usr/bin/env bash
# Each part of the bundle by itself, in a root with only the files of Debian's package libc6: it
# runs, or prints NOT RUN with the reason, keeps its time limit, and its report is checked as JSON.
set -euo pipefail
if ! unshare --user --map-root-user --mount --pid --net --fork true 2>/dev/null; then
  echo "figure: needs user namespaces (kernel.unprivileged_userns_clone)"
  exit 77
fi
place=$(mktemp -d "${TMPDIR:-/tmp}/starling-bundle.XXXXXX")
trap 'rm -rf --one-file-system "$place"' EXIT
tools/gpu_bundle.sh "$place/bundle"
# shellcheck source=tools/accept/bare_root.sh
source tools/accept/bare_root.sh
bare_root "$place/root"
cp -r "$place/bundle" "$place/root/bundle"

ran="" holds=true
for part in check conformance cluster "compute" "compute resnet50" "compute gpt2" servers memcheck \
  racecheck; do
  name=${part// /-}
  # shellcheck disable=SC2086  # two words
  in_bare_root "$place/root" /bundle/starling-unpack check $part --json "/tmp/$name.json" \
    >"$place/$name" 2>&1 || holds=false
  cat "$place/$name"
  verdict=$(python3 - "$place/root/tmp/$name.json" "$part" <<'PYTHON'
import json
import sys

report = json.load(open(sys.argv[1], encoding="utf-8"))
wanted = sys.argv[2]
assert report["parts"], "no part ran"
for part in report["parts"]:
    assert part["name"].rsplit(" ", 1)[0] == wanted, f"{part['name']} ran, expected {wanted}"
    assert part["seconds"] <= part["limit_seconds"] > 0, (
        f"took {part['seconds']} s of {part['limit_seconds']}"
    )
    if part["verdict"] == "NOT RUN":
        assert len(part["text"]) > 10, "NOT RUN without a reason"
    else:
        assert part["verdict"] == "passed", f"{part['name']}: {part['verdict']}: {part['text']}"
assert report["last"].startswith("bundle: "), report["last"]
print(", ".join(f"{part['name']} {part['verdict']}" for part in report["parts"]))
PYTHON
  ) || { holds=false verdict="$part: its report is wrong"; }
  ran+="${ran:+; }$verdict"
done
echo "figure: $ran"
$holds
