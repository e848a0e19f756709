"""@clang_toolchain: Clang, which compiles the sanitized builds (--crosstool_top).

Beside Bazel's own toolchain, which is GCC: changing that one's CC would configure it again, and
with it everything, each time that a sanitized build follows a plain one. The repository is made
only where a build asks for it.
"""

load("@bazel_tools//tools/cpp:lib_cc_configure.bzl", "get_cpu_value")
load("@bazel_tools//tools/cpp:unix_cc_configure.bzl", "configure_unix_toolchain")

_CLANG = "clang-16"

def _clang_toolchain(ctx):
    clang = ctx.which(_CLANG)
    if clang == None:
        fail("There is no %s, which sanitized builds need: run tools/setup.sh --tests" % _CLANG)
    configure_unix_toolchain(ctx, get_cpu_value(ctx), {"gcc": str(clang)})

clang_toolchain = repository_rule(
    configure = True,
    environ = ["PATH"],
    implementation = _clang_toolchain,
)
