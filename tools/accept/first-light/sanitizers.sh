#!/usr/bin/env bash
# ASan + UBSan over all C++ tests; ThreadSanitizer over cores, event loop and simulator, without
# suppressions; and a planted race is caught.
set -euo pipefail
for config in asan tsan; do
  filter=-no-sanitize
  [[ "$config" == tsan ]] && filter=tsan
  bazel test --config="$config" --build_tests_only --test_lang_filters=cc \
    --test_tag_filters="$filter" --test_summary=terse --ui_event_filters=-info,-debug //... >&2
done
status=0
bazel build --config=tsan --ui_event_filters=-info,-debug //tests/sanitizers:planted_race >&2
"$(bazel info --config=tsan bazel-bin 2>/dev/null)/tests/sanitizers/planted_race" \
  2>race.log >/dev/null || status=$?
caught=no
grep -q "WARNING: ThreadSanitizer: data race" race.log && ((status != 0)) && caught=yes
rm -f race.log
echo "figure: asan clean, tsan clean, planted race caught: $caught"
[[ "$caught" == yes ]]
