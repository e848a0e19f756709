"""Linking with Debian's static archives, by the options of the one link that wants it.

What the libraries of //third_party name as -lNAME stays on the command line, behind these options,
and finds nothing left to resolve: --as-needed drops it. So the objects are the same as everywhere.
"""

load("//third_party:absl.bzl", "ABSL_LIBS")

# The last line is what gRPC's archives use. A group needs no order.
_ARCHIVES = [
    "grpc++_reflection", "grpc++", "grpc", "gpr", "protobuf",
    "yaml-cpp", "sqlite3", "turbojpeg",
    "address_sorting", "upb", "re2", "cares", "ssl", "crypto", "z",
]

# All but oneDNN, spdlog, fmt and xxhash's dispatch, of which Debian has no archives, and the
# compiler's own libraries. For programs: Abseil's archives are not made for shared objects. Nothing
# of the archives is shown, so that a shared object with an Abseil of its own does not find halves of
# this one.
STATIC_LINKOPTS = (
    ["-Wl,--as-needed", "-Wl,--start-group"] +
    ["-l:lib%s.a" % name for name in _ARCHIVES + ["absl_" + name for name in ABSL_LIBS]] +
    ["-Wl,--end-group", "-Wl,--exclude-libs,ALL", "-ldl", "-lpthread"]
)
