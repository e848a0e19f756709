#!/usr/bin/env bash
# Every program of the bundle runs by its first argument and by its own name.
set -euo pipefail
bundle=$PWD/$1
names=(starling starling-coordinator starling-ps starling-worker conformance compute_bench
  local_trainer
  check)

fail() {
  echo "applets_test: $*" >&2
  exit 1
}

listed=$("$bundle" --help | sed -n 's/^  \([a-z_-]*\) .*/\1/p')
[[ "$listed" == "$(printf '%s\n' "${names[@]}")" ]] || fail "expected ${names[*]}, listed: $listed"

for name in "${names[@]}"; do
  ln -s "$bundle" "$TEST_TMPDIR/$name"
  by_argument=$("$bundle" "$name" --help) || fail "$name --help: status $?"
  by_name=$("$TEST_TMPDIR/$name" --help) || fail "the link $name --help: status $?"
  [[ -n "$by_argument" ]] || fail "$name --help prints nothing"
  # GoogleTest's help contains the program's path.
  [[ "$name" == conformance || "$by_argument" == "$by_name" ]] ||
    fail "$name: the link prints another help"
done

status=0
"$bundle" starling-driver 2>"$TEST_TMPDIR/error" || status=$?
((status == 2)) || fail "an unknown program: status $status, expected 2"
grep -q 'no program "starling-driver"' "$TEST_TMPDIR/error" || fail "does not say what is unknown"
status=0
"$bundle" 2>/dev/null || status=$?
((status == 2)) || fail "no program: status $status, expected 2"

# All libraries are linked in, except those without a static library in Debian and the compiler's.
others=$(readelf -d "$bundle" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
  grep -vE '^(libdnnl|libgomp|libspdlog|libfmt|libxxhash|libstdc\+\+|libgcc_s|libm|libc)\.so' |
  grep -vE '^ld-linux-x86-64\.so' || true)
[[ -z "$others" ]] || fail "needs shared libraries that were to be linked in: $others"
