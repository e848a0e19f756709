"""C++ targets with Starling's compiler flags.

The flags that affect numerics are fixed here for every target. Results must not depend on the
machine that compiled them, so there is no -march=native, no -ffast-math, and no implicit fusing of
multiply and add.
"""

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    # Designated initializers leave the other fields at their defaults on purpose.
    "-Wno-missing-field-initializers",
    # And the braces around a base's fields.
    "-Wno-missing-braces",
    "-ffp-contract=off",
    "-fno-math-errno",
] + select({
    # GCC's hints for its vectorizer.
    "//tools/bazel:clang": ["-Wno-unknown-pragmas"],
    "//conditions:default": [
        # GCC 12 has false positives in Abseil's and the standard library's headers.
        "-Wno-maybe-uninitialized",
        # It takes an included .cc for a header, whose classes must not use its unnamed namespace.
        "-Wno-subobject-linkage",
    ],
}) + select({
    "//tools/bazel:alone_by_clang": [],
    # Precompiled (clang_toolchain.bzl) for one set of macros, so all files have those for spdlog.
    "//tools/bazel:clang": [
        "-include",
        "external/clang_toolchain/extra_tools/precompiled.h",
        "-DSPDLOG_SHARED_LIB",
        "-DSPDLOG_COMPILED_LIB",
        "-DSPDLOG_FMT_EXTERNAL",
    ],
    "//conditions:default": [],
})

# Sources in one compile of a unity build: fewer parse headers more often, more leave cores idle.
_UNITY_SOURCES_MAX = 12

def _unity(name, srcs, apart):
    """Sources that are compiled as one, unless --define=alone=true.

    Args:
      name: of the target.
      srcs: its sources and headers.
      apart: sources that are compiled alone.
    Returns: (srcs for the target, its textual headers).
    """
    sources = [src for src in srcs if src.endswith(".cc") and src not in apart]
    units = []
    for first in range(0, len(sources), _UNITY_SOURCES_MAX):
        unit = "unity_%d/%s.cc" % (first // _UNITY_SOURCES_MAX, name)
        included = [
            native.package_name() + "/" + source
            for source in sources[first:first + _UNITY_SOURCES_MAX]
        ]
        native.genrule(
            name = unit.replace("/", "_").replace(".cc", ""),
            outs = [unit],
            cmd = "printf '#include \"%s\"\\n' " + " ".join(included) + " >$@",
            tags = ["library"],
            visibility = ["//visibility:private"],
        )
        units.append(unit)
    others = [src for src in srcs if src not in sources]
    return (
        select({"//tools/bazel:alone": srcs, "//conditions:default": units + others}),
        select({"//tools/bazel:alone": [], "//conditions:default": sources}),
    )

def starling_cc_library(
        name,
        srcs = [],
        textual_hdrs = [],
        copts = [],
        tags = [],
        unity = False,
        apart = [],
        **kwargs):
    """A cc_library with Starling's flags; takes all cc_library arguments.

    Its tag "library" lets tools/test.sh build only the libraries that a program or test links.

    Args:
      unity: compile the sources together, which saves most of the time that headers take. Then no
        two of them define the same name in an unnamed namespace.
      apart: the sources for which that does not hold.
    """
    if unity:
        srcs, sources = _unity(name, srcs, apart)
        textual_hdrs = textual_hdrs + sources
    native.cc_library(
        name = name,
        srcs = srcs,
        textual_hdrs = textual_hdrs,
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

def starling_cc_test(
        name,
        srcs = [],
        copts = [],
        deps = [],
        size = "small",
        tags = [],
        unity = False,
        apart = [],
        **kwargs):
    """A GoogleTest with main(), gtest and gmock.

    `bazel test` runs all tests. tools/test.sh runs each one under ASan and UBSan, and elsewhere as
    its tags say (docs/testing.md): "plain" (also run without sanitizers: results or speed depend on
    optimization); "tsan" (also run under ThreadSanitizer; not for code that uses gRPC or
    absl::Mutex, which are not instrumented); "no-sanitize" (run without sanitizers only).
    `unity` and `apart` are those of starling_cc_library.
    """
    runs_plain = "plain" in tags or "no-sanitize" in tags
    if unity:
        srcs, sources = _unity(name, srcs, apart)
        native.cc_library(
            name = name + "_sources",
            testonly = True,
            textual_hdrs = sources,
            tags = ["library"],
            visibility = ["//visibility:private"],
        )
        deps = deps + [":%s_sources" % name]
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
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
