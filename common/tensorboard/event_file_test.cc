#include "common/tensorboard/event_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/tensorboard/curve_events.h"

namespace starling::tensorboard {
namespace {

using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  std::filesystem::remove_all(folder);
  return folder;
}

std::string FileText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

uint64_t LittleEndian(const std::string& text, size_t at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(text[at + i])} << (8 * i);
  return value;
}

std::vector<Event> Read(const std::string& path) {
  const std::string text = FileText(path);
  std::vector<Event> events;
  for (size_t at = 0; at < text.size();) {
    const uint64_t size = LittleEndian(text, at, 8);
    const std::string data = text.substr(at + 12, size);
    EXPECT_EQ(text.substr(at, 16 + size), RecordFrame(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(data));
    at += 16 + size;
  }
  return events;
}

TEST(RecordFrame, HasLengthsAndMaskedChecksums) {
  // CRC32C of "123456789" is 0xE3069283; its mask is computed by hand.
  const std::string frame = RecordFrame("123456789");
  ASSERT_EQ(frame.size(), 8u + 4 + 9 + 4);
  EXPECT_EQ(LittleEndian(frame, 0, 8), 9u);
  EXPECT_EQ(frame.substr(12, 9), "123456789");
  const uint32_t crc = 0xE3069283;
  EXPECT_EQ(LittleEndian(frame, 21, 4),
            static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8));
}

TEST(EventFile, BeginsWithVersionAndSession) {
  const std::string folder = Folder("begins") + "/a/b";
  const absl::Time now = absl::FromUnixMillis(1'700'000'000'500);
  auto file = EventFile::Create(folder, 17, now);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->path(), HasSubstr("/a/b/events.out.tfevents.1700000000."));
  Event event;
  event.set_step(18);
  event.mutable_summary()->add_value()->set_tag("x");
  ASSERT_TRUE((*file)->Append(event).ok());
  const std::vector<Event> events = Read((*file)->path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_DOUBLE_EQ(events[0].wall_time(), 1'700'000'000.5);
  EXPECT_EQ(events[1].session_log().status(), SessionLog::START);
  EXPECT_EQ(events[1].step(), 17);
  EXPECT_EQ(events[2].SerializeAsString(), event.SerializeAsString());
  // A second file in the same second gets another name.
  const auto second = EventFile::Create(folder, 0, now);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE((*second)->path(), (*file)->path());
}

TEST(EventFile, AFolderThatCannotBeWrittenIsNamed) {
  const std::string folder = Folder("refused");
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/file") << "x";
  for (const std::string& bad :
       {folder + "/file", folder + "/file/below", std::string("/proc/nothing")}) {
    const absl::Status status = EventFile::Create(bad, 0, absl::UnixEpoch()).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  }
  const OwnedFd open_folder(open(folder.c_str(), O_RDONLY | O_DIRECTORY));
  std::filesystem::remove(folder + "/file");
  EXPECT_TRUE(CheckFolder(open_folder.get(), folder).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the check leaves nothing";
  std::filesystem::remove(folder);
  const absl::Status gone = CheckFolder(open_folder.get(), folder);
  EXPECT_EQ(gone.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(gone.message()), HasSubstr(folder));
}

// The disk is full for a moment: that record is missing, those before and after it are there.
TEST(EventFile, AnAppendThatFailsLeavesWholeRecords) {
  auto file = EventFile::Create(Folder("full"), 0, absl::UnixEpoch());
  ASSERT_TRUE(file.ok()) << file.status();
  Event event;
  event.mutable_summary()->add_value()->set_tag(std::string(1000, 'x'));
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 500;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = (*file)->Append(event);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write"));
  EXPECT_EQ(Read((*file)->path()).size(), 2u);
  EXPECT_TRUE((*file)->Append(event).ok());
  EXPECT_EQ(Read((*file)->path()).size(), 3u);
}

// ---- Curves ----

const Summary::Value* Find(const Event& event, const std::string& tag) {
  for (const Summary::Value& value : event.summary().value()) {
    if (value.tag() == tag) return &value;
  }
  return nullptr;
}

TEST(CurveEvents, APointHasAScalarForEachCurveAndAHistogram) {
  CurvePoint point;
  point.set_step(40);
  point.set_unix_seconds(1234.5);
  point.set_train_loss(0.25);
  point.set_train_accuracy(0.75);
  point.set_learning_rate(0.01);
  point.set_samples_per_second(1000);
  point.set_hidden_share(0.5);
  point.set_staleness_max(2);
  for (const uint64_t count : {4, 0, 3}) point.add_staleness_histogram(count);
  const Event event = PointEvent(point);
  EXPECT_EQ(event.step(), 40);
  EXPECT_DOUBLE_EQ(event.wall_time(), 1234.5);
  const std::vector<std::pair<std::string, float>> scalars = {
      {"loss/train", 0.25f},
      {"accuracy/train", 0.75f},
      {"learning_rate", 0.01f},
      {"staleness/max", 2.0f},
      {"throughput/hidden_share", 0.5f},
      {"throughput/samples_per_second", 1000.0f}};
  for (const auto& [tag, value] : scalars) {
    ASSERT_NE(Find(event, tag), nullptr) << tag;
    EXPECT_EQ(Find(event, tag)->simple_value(), value) << tag;
  }
  ASSERT_NE(Find(event, "staleness"), nullptr);
  const HistogramProto& histogram = Find(event, "staleness")->histo();
  EXPECT_EQ(histogram.min(), 0);
  EXPECT_EQ(histogram.max(), 2);
  EXPECT_EQ(histogram.num(), 7);
  EXPECT_EQ(histogram.sum(), 6);
  EXPECT_EQ(histogram.sum_squares(), 12);
  EXPECT_THAT(histogram.bucket_limit(), ::testing::ElementsAre(0.5, 1.5, 2.5));
  EXPECT_THAT(histogram.bucket(), ::testing::ElementsAre(4, 0, 3));
}

TEST(CurveEvents, WhatIsNotKnownIsNotWritten) {
  const Event event = PointEvent(CurvePoint());
  EXPECT_EQ(Find(event, "loss/train"), nullptr);
  EXPECT_EQ(Find(event, "accuracy/train"), nullptr);
  EXPECT_EQ(Find(event, "staleness"), nullptr);
  EXPECT_NE(Find(event, "learning_rate"), nullptr);
}

TEST(CurveEvents, ALeadBeyondTheLastBucketIsInsideIt) {
  CurvePoint point;
  point.add_staleness_histogram(1);
  point.add_staleness_histogram(1);
  point.set_staleness_max(40);
  const Event event = PointEvent(point);
  const HistogramProto& histogram = Find(event, "staleness")->histo();
  EXPECT_EQ(histogram.max(), 40);
  EXPECT_GT(histogram.bucket_limit(1), 40);
}

TEST(CurveEvents, AnEpochThatWasEvaluatedHasItsTest) {
  EpochResult result;
  EXPECT_FALSE(EpochEvent(result).has_value());
  result.set_evaluated(true);
  result.set_step(100);
  result.set_unix_seconds(9);
  result.set_test_loss(0.5);
  Event event = *EpochEvent(result);
  EXPECT_EQ(event.step(), 100);
  EXPECT_EQ(Find(event, "loss/test")->simple_value(), 0.5f);
  EXPECT_EQ(Find(event, "accuracy/test"), nullptr);
  result.set_test_accuracy(0.875);
  event = *EpochEvent(result);
  EXPECT_EQ(Find(event, "accuracy/test")->simple_value(), 0.875f);
}

}  // namespace
}  // namespace starling::tensorboard
