// Describes this process's machine: NodeReply of proto/daemon.proto, without addresses.
#ifndef STARLING_COMMON_DAEMON_NODE_H_
#define STARLING_COMMON_DAEMON_NODE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/daemon.pb.h"

namespace starling {

// Reads /proc, /sys and the control group's files, and looks for NVIDIA's libraries, which are
// optional. Takes milliseconds; the first call may take longer on a machine with a GPU.
// Thread-safe.
NodeReply DescribeNode();

// From /proc/cpuinfo: the first "model name"; empty: none.
std::string CpuModelOf(absl::string_view cpuinfo);
// From /proc/meminfo; 0: no such key.
uint64_t MeminfoBytes(absl::string_view meminfo, absl::string_view key);
// From /proc/driver/nvidia/version: "535.161.08"; empty: none.
std::string NvidiaDriverOf(absl::string_view version);
// 12040 -> "12.4", as libcudart encodes it; 90100 -> "9.1.0", as libcudnn does (8907 -> "8.9.7").
std::string CudaVersionText(int version);
std::string CudnnVersionText(uint64_t version);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_NODE_H_
