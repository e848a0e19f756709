"""Protobuf and gRPC code for C++, made by the system's protoc.

Includes and imports are relative to the repository root:
`#include "proto/job.pb.h"`, `import "proto/model.proto";`.
"""

def _protos(label):
    """The target that holds the .proto files of a starling_proto_library."""
    if ":" not in label:
        label = label + ":" + label.split("/")[-1]
    return label + "_protos"

def starling_proto_library(name, srcs, deps = [], grpc = False, visibility = None, testonly = False):
    """A C++ library for .proto files.

    Args:
      name: the cc_library's name.
      srcs: .proto files of this package.
      deps: other starling_proto_library targets whose files are imported.
      grpc: whether to generate service stubs (`.grpc.pb.h`), too.
      visibility: as everywhere.
      testonly: as everywhere.
    """
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [_protos(dep) for dep in deps],
        testonly = testonly,
        visibility = visibility,
    )

    suffixes = [".pb"] + ([".grpc.pb"] if grpc else [])
    stems = [src[:-len(".proto")] for src in srcs]
    hdrs = [stem + suffix + ".h" for stem in stems for suffix in suffixes]
    ccs = [stem + suffix + ".cc" for stem in stems for suffix in suffixes]

    flags = "--cpp_out=$(GENDIR)"
    if grpc:
        flags += " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)"
    package = native.package_name()
    paths = [(package + "/" if package else "") + src for src in srcs]
    native.genrule(
        name = name + "_gen",
        srcs = [name + "_protos"],
        outs = hdrs + ccs,
        cmd = "/usr/bin/protoc -I. " + flags + " " + " ".join(paths),
        message = "Generating",
        testonly = testonly,
        visibility = ["//visibility:private"],
    )

    native.cc_library(
        name = name,
        srcs = ccs,
        hdrs = hdrs,
        # The reflection service finds a service through its file's static registration, which no
        # symbol refers to.
        alwayslink = grpc,
        linkstatic = True,
        testonly = testonly,
        visibility = visibility,
        deps = deps + ["//third_party:grpc" if grpc else "//third_party:protobuf"],
    )
