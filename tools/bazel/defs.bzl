"""C++ targets with Starling's compiler flags.

The flags that change numbers are fixed here for every target: results must
not depend on the machine that compiled them, so neither -march=native nor
-ffast-math, and no silent fusing of multiply and add.
"""

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    # GCC 12 sees it inside Abseil's and the standard library's headers.
    "-Wno-maybe-uninitialized",
    # Designated initializers name what they set; the rest is its default on purpose.
    "-Wno-missing-field-initializers",
    "-ffp-contract=off",
    "-fno-math-errno",
]

def starling_cc_library(name, copts = [], **kwargs):
    """A cc_library with Starling's flags; takes all of cc_library's arguments."""
    native.cc_library(
        name = name,
        copts = COPTS + copts,
        linkstatic = True,
        **kwargs
    )

def starling_cc_binary(name, copts = [], **kwargs):
    """A cc_binary with Starling's flags; takes all of cc_binary's arguments."""
    native.cc_binary(
        name = name,
        copts = COPTS + copts,
        **kwargs
    )

def starling_cc_test(name, copts = [], deps = [], size = "small", **kwargs):
    """A GoogleTest; main(), gtest and gmock come with it.

    Tags that tools/test.sh knows: "no-sanitize" (leave out of the asan run),
    "tsan" (run under ThreadSanitizer, too; not for what uses gRPC or
    absl::Mutex, whose libraries ThreadSanitizer cannot see into).
    """
    native.cc_test(
        name = name,
        size = size,
        copts = COPTS + copts,
        linkstatic = True,
        deps = deps + ["//third_party:gtest_main"],
        **kwargs
    )

def starling_cc_benchmark(name, copts = [], deps = [], testonly = True, **kwargs):
    """A Google Benchmark binary; main() comes with it. Run it with `bazel run`."""
    native.cc_binary(
        name = name,
        testonly = testonly,
        copts = COPTS + copts,
        deps = deps + ["//third_party:benchmark_main"],
        **kwargs
    )
