"""@clang_toolchain: Clang, which compiles the sanitized builds (--crosstool_top).

Beside Bazel's own toolchain, which is GCC: changing that one's CC would configure it again, and
with it everything, each time that a sanitized build follows a plain one. The repository is made
only where a build asks for it.

It has precompiled.h beside a folder with what Clang makes of it, once for each sanitizer and kind
of optimization: an unoptimized compile spends three quarters of its time on headers. Clang takes
what suits a source, and fails where nothing does: macros and sanitizers must be those below.
"""

load("@bazel_tools//tools/cpp:lib_cc_configure.bzl", "get_cpu_value")
load("@bazel_tools//tools/cpp:unix_cc_configure.bzl", "configure_unix_toolchain")

_CLANG = "clang-16"

# As in .bazelrc, defs.bzl and Bazel's unix_cc_configure.bzl.
_FLAGS = [
    "-std=c++20",
    "-g1",
    "-fPIC",
    "-U_FORTIFY_SOURCE",
    "-fstack-protector",
    "-fno-omit-frame-pointer",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-DSTARLING_SANITIZED",
    "-DSPDLOG_SHARED_LIB",
    "-DSPDLOG_COMPILED_LIB",
    "-DSPDLOG_FMT_EXTERNAL",
    "-Wno-builtin-macro-redefined",
    "-D__DATE__=\"redacted\"",
    "-D__TIMESTAMP__=\"redacted\"",
    "-D__TIME__=\"redacted\"",
]
_ASAN = ["-fsanitize=address"]
_TSAN = ["-fsanitize=thread", "-DSTARLING_TSAN"]
_VARIANTS = {
    "asan": _ASAN + ["-O0"],
    "asan-optimized": _ASAN + ["-O1"],
    "tsan": _TSAN + ["-O0"],
    "tsan-optimized": _TSAN + ["-O1"],
}

def _clang_toolchain(ctx):
    clang = ctx.which(_CLANG)
    if clang == None:
        fail("There is no %s, which sanitized builds need: run tools/setup.sh --tests" % _CLANG)
    configure_unix_toolchain(ctx, get_cpu_value(ctx), {"gcc": str(clang)})

    # Made again when packages are installed.
    ctx.path(Label("@dpkg//:status"))

    # What is in extra_tools is among the inputs of each compile. Clang reads standard input, in /:
    # the results are the same in all checkouts, which share a cache of objects.
    header = "extra_tools/precompiled.h"
    ctx.file(header, ctx.read(Label("//tools/bazel:precompiled.h")), executable = False)
    ctx.file(header + ".pch/README", "By what Clang takes it for.\n", executable = False)
    for name, flags in _VARIANTS.items():
        command = [clang, "-x", "c++-header", "-fpch-instantiate-templates", "-"]
        command += _FLAGS + flags
        command += ["-o", ctx.path(header + ".pch/" + name)]
        done = ctx.execute(
            ["/bin/sh", "-c", "exec \"$@\" <\"$0\"", ctx.path(header)] + command,
            working_directory = "/",
        )
        if done.return_code != 0:
            fail("%s could not precompile %s:\n%s" % (clang, header, done.stderr))

clang_toolchain = repository_rule(
    configure = True,
    environ = ["PATH"],
    implementation = _clang_toolchain,
)
