"""C++ targets with Starling's compiler flags.

The flags that affect numerics are fixed here for every target. Results must not depend on the
machine that compiled them, so there is no -march=native, no -ffast-math, and no implicit fusing of
multiply and add.
"""

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    # GCC 12 has false positives in Abseil's and the standard library's headers.
    "-Wno-maybe-uninitialized",
    # Designated initializers leave the other fields at their defaults on purpose.
    "-Wno-missing-field-initializers",
    "-ffp-contract=off",
    "-fno-math-errno",
]

def starling_cc_library(name, copts = [], tags = [], **kwargs):
    """A cc_library with Starling's flags; takes all cc_library arguments.

    Its tag "library" lets tools/test.sh build only the libraries that a program or test links.
    """
    native.cc_library(
        name = name,
        copts = COPTS + copts,
        linkstatic = True,
        tags = tags + ["library"],
        **kwargs
    )

def starling_cc_binary(name, copts = [], **kwargs):
    """A cc_binary with Starling's flags; takes all cc_binary arguments."""
    native.cc_binary(
        name = name,
        copts = COPTS + copts,
        **kwargs
    )

def starling_cc_test(name, copts = [], deps = [], size = "small", tags = [], **kwargs):
    """A GoogleTest with main(), gtest and gmock.

    `bazel test` runs all tests. tools/test.sh runs each one under ASan and UBSan, and elsewhere as
    its tags say (docs/testing.md): "plain" (also run without sanitizers: results or speed depend on
    optimization); "tsan" (also run under ThreadSanitizer; not for code that uses gRPC or
    absl::Mutex, which are not instrumented); "no-sanitize" (run without sanitizers only).
    """
    runs_plain = "plain" in tags or "no-sanitize" in tags
    native.cc_test(
        name = name,
        size = size,
        copts = COPTS + copts,
        linkstatic = True,
        tags = tags + ([] if runs_plain else ["sanitizers-only"]),
        deps = deps + ["//third_party:gtest_main"],
        **kwargs
    )

def starling_cc_benchmark(name, copts = [], deps = [], testonly = True, **kwargs):
    """A Google Benchmark binary with main(). Run it with `bazel run`."""
    native.cc_binary(
        name = name,
        testonly = testonly,
        copts = COPTS + copts,
        deps = deps + ["//third_party:benchmark_main"],
        **kwargs
    )
