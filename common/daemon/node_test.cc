#include "common/daemon/node.h"

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(NodeTest, ThisMachineIsDescribed) {
  const NodeReply node = DescribeNode();
  EXPECT_FALSE(node.host().empty());
  EXPECT_GE(node.cores(), 1u);
  EXPECT_GT(node.memory_bytes(), 0u);
  EXPECT_GT(node.available_bytes(), 0u);
  EXPECT_LE(node.available_bytes(), node.memory_bytes());
  EXPECT_GE(node.open_files(), 3u);
  EXPECT_GT(node.open_files_max(), node.open_files());
  EXPECT_EQ(node.kernel().substr(0, 5), "Linux");
  // A second call finds the same: cached look-ups do not accumulate.
  EXPECT_EQ(DescribeNode().gpus_size(), node.gpus_size());
}

TEST(NodeTest, CpuModel) {
  EXPECT_EQ(CpuModelOf("processor\t: 0\nmodel\t\t: 85\nmodel name\t: A Processor @ 2.7 GHz\n"
                       "model name\t: another\n"),
            "A Processor @ 2.7 GHz");
  EXPECT_EQ(CpuModelOf(""), "");
}

TEST(NodeTest, Meminfo) {
  const char* const text = "MemTotal:        8000 kB\nMemFree:  1 kB\nMemAvailable:    2000 kB\n";
  EXPECT_EQ(MeminfoBytes(text, "MemTotal"), 8000u << 10);
  EXPECT_EQ(MeminfoBytes(text, "MemAvailable"), 2000u << 10);
  EXPECT_EQ(MeminfoBytes(text, "Mem"), 0u);
  EXPECT_EQ(MeminfoBytes("MemTotal: much kB", "MemTotal"), 0u);
}

TEST(NodeTest, Nvidia) {
  EXPECT_EQ(
      NvidiaDriverOf("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 17\n"
                     "GCC version:  gcc version 12.2.0\n"),
      "535.161.08");
  EXPECT_EQ(NvidiaDriverOf(
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release\n"),
            "570.86.15");
  EXPECT_EQ(NvidiaDriverOf(""), "");
  EXPECT_EQ(CudaVersionText(12040), "12.4");
  EXPECT_EQ(CudaVersionText(11080), "11.8");
  EXPECT_EQ(CudnnVersionText(8907), "8.9.7");
  EXPECT_EQ(CudnnVersionText(90100), "9.1.0");
}

}  // namespace
}  // namespace starling
