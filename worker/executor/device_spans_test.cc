#include "worker/executor/device_spans.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/fake_discrete_device.h"

namespace starling {
namespace {

constexpr uint64_t kTick = 1'000'000'000;  // microseconds: longer than the test

// A device whose clock starts anywhere and advances one tick each time it is read.
class DeviceSpansTest : public ::testing::Test {
 protected:
  DeviceSpansTest()
      : device_(MakeFakeDiscreteDevice(CreateCpuDevice().value(), Options())),
        stream_(device_->CreateStream().value()),
        spans_(device_.get(), &ring_, stream_.get()) {}

  FarOptions Options() {
    FarOptions options;
    options.fault = fault_;
    options.clock = [this] { return ++ticks_ * int64_t{kTick} * 1000; };
    return options;
  }

  void Order(const char* name) {
    ASSERT_TRUE(spans_.Open(name).ok());
    ASSERT_TRUE(spans_.Close().ok());
  }
  std::vector<TraceSpan> Reported() {
    EXPECT_TRUE(stream_->Synchronize().ok());
    const absl::Status status = spans_.Report();
    EXPECT_TRUE(status.ok()) << status;
    const SpanRing::Snapshot snapshot = ring_.Read(0, read_);
    read_ = snapshot.recorded;
    return snapshot.spans;
  }

  int64_t ticks_ = 5;
  const std::shared_ptr<FarFault> fault_ = std::make_shared<FarFault>();
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
  SpanRing ring_;
  uint64_t read_ = 0;
  DeviceSpans spans_;
};

// Each span starts one tick after the previous one and takes one tick, on the host's clock, which
// was between `before` and `after` when the device's was read.
TEST_F(DeviceSpansTest, AreTheDevicesTimesOnTheHostsClock) {
  uint64_t before = SpanRing::NowMicros();
  ASSERT_TRUE(spans_.Begin(7).ok());
  uint64_t after = SpanRing::NowMicros();
  for (int round = 0; round < 3; ++round) {  // Report compares the clocks again
    Order("first");
    Order("second");
    const uint64_t next = SpanRing::NowMicros();
    const std::vector<TraceSpan> spans = Reported();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].name(), "first");
    EXPECT_EQ(spans[1].name(), "second");
    EXPECT_GE(spans[0].begin_us, before + kTick);
    EXPECT_LE(spans[0].begin_us, after + kTick);
    EXPECT_EQ(spans[1].begin_us, spans[0].begin_us + 2 * kTick);
    for (const TraceSpan& span : spans) {
      EXPECT_EQ(span.duration_us, kTick);
      EXPECT_EQ(span.category, SpanCategory::kDevice);
      EXPECT_EQ(span.clock, 7);
    }
    before = next;
    after = SpanRing::NowMicros();
  }
}

TEST_F(DeviceSpansTest, BeginForgetsWhatWasNotReported) {
  ASSERT_TRUE(spans_.Begin(1).ok());
  Order("of a unit that failed");
  ASSERT_TRUE(stream_->Synchronize().ok());
  ASSERT_TRUE(spans_.Begin(2).ok());
  Order("new");
  const std::vector<TraceSpan> spans = Reported();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].name(), "new");
  EXPECT_EQ(spans[0].clock, 2);
}

// Spans never cause a failure: once times are missing, no further spans are recorded.
TEST_F(DeviceSpansTest, GoesOnWithoutTimes) {
  ASSERT_TRUE(spans_.Begin(1).ok());
  Order("a");
  ASSERT_TRUE(stream_->Synchronize().ok());
  fault_->FailAt(1);
  EXPECT_TRUE(spans_.Report().ok());
  EXPECT_TRUE(fault_->struck());
  Order("b");
  EXPECT_TRUE(Reported().empty());
}

TEST_F(DeviceSpansTest, SaysThatTheDeviceIsLost) {
  ASSERT_TRUE(spans_.Begin(1).ok());
  Order("a");
  ASSERT_TRUE(stream_->Synchronize().ok());
  fault_->LoseAt(1);
  EXPECT_EQ(spans_.Report().code(), absl::StatusCode::kUnavailable);
}

TEST(DeviceSpans, AreNoneWhereWorkHasRunWhenItWasOrdered) {
  const std::unique_ptr<Device> device = CreateCpuDevice().value();
  const std::unique_ptr<Stream> stream = device->CreateStream().value();
  SpanRing ring;
  DeviceSpans spans(device.get(), &ring, stream.get());
  ASSERT_TRUE(spans.Begin(1).ok());
  ASSERT_TRUE(spans.Open("a").ok());
  ASSERT_TRUE(spans.Close().ok());
  ASSERT_TRUE(spans.Report().ok());
  EXPECT_TRUE(ring.Read(0).spans.empty());
}

}  // namespace
}  // namespace starling
