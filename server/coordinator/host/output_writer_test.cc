#include "server/coordinator/host/output_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/safetensors/safetensors.h"

namespace starling::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OutputWriterTest : public testing::Test {
 protected:
  OutputWriterTest()
      : root_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(root_);
    job_.mutable_status()->set_name("digits");
    job_.mutable_status()->set_state(SUCCEEDED);
    job_.add_values();
    job_.mutable_spec()->set_output("runs/one/digits.safetensors");
    Parameter* parameter = job_.mutable_spec()->mutable_model()->add_parameters();
    parameter->set_name("w");
    parameter->add_shape(4);
    parameter->set_kind(TRAINABLE);
    read_ = [this](const JobReply&, const Layout& layout, const ReadPoint&, absl::Time,
                   const SliceConsumer& consume, const std::atomic<bool>&) -> absl::Status {
      ++reads_;
      for (const Slice& slice : layout.slices) {
        std::vector<float> values(slice.elements);
        std::iota(values.begin(), values.end(), 1.0f);
        if (absl::Status status = consume(slice, values); !status.ok()) return status;
      }
      return std::exchange(failure_, absl::OkStatus());
    };
  }

  absl::StatusOr<uint64_t> Write() {
    OutputWriter writer(root_, read_);
    std::promise<absl::StatusOr<uint64_t>> done;
    writer.Write(job_, [&](absl::StatusOr<uint64_t> bytes) { done.set_value(std::move(bytes)); });
    return done.get_future().get();
  }
  std::string Path() const { return absl::StrCat(root_, "/", job_.spec().output()); }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (!entry.is_directory()) files.push_back(entry.path().lexically_relative(root_));
    }
    return files;
  }

  const std::string root_;
  JobReply job_;
  ReadValues read_;
  int reads_ = 0;
  absl::Status failure_;
};

TEST_F(OutputWriterTest, WritesTheFileAndItsFolders) {
  fs::create_directories(fs::path(Path()).parent_path());
  std::ofstream(Path() + ".partial") << "left by a writer that was killed";
  const auto bytes = Write();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, fs::file_size(Path()));
  EXPECT_THAT(Files(), ElementsAre("runs/one/digits.safetensors"));
  const auto file = safetensors::Reader::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*file->ReadFloats("w"), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(file->header().metadata.at("job"), "digits");
  ASSERT_TRUE(Write().ok()) << "after a restart it is written again";
  job_.mutable_spec()->set_output("at_the_root.safetensors");
  EXPECT_TRUE(Write().ok());
}

TEST_F(OutputWriterTest, FollowsNoLink) {
  const std::string outside = root_ + ".outside";
  fs::create_directories(outside);
  fs::create_directory_symlink(outside, root_ + "/runs");
  auto bytes = Write();
  EXPECT_FALSE(bytes.ok());
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("runs is a link"));
  EXPECT_TRUE(fs::is_empty(outside));
  fs::remove(root_ + "/runs");

  fs::create_directories(fs::path(Path()).parent_path());
  const std::string kept = outside + "/kept";
  std::ofstream(kept) << "kept";
  fs::create_symlink(kept, Path());
  bytes = Write();
  EXPECT_FALSE(bytes.ok());
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("is no regular file"));
  fs::remove(Path());

  fs::create_symlink(kept, Path() + ".partial");
  EXPECT_TRUE(Write().ok());
  EXPECT_EQ(fs::file_size(kept), 4u);
}

TEST_F(OutputWriterTest, AFailureLeavesNoFileAndWhatWasThereBefore) {
  ASSERT_TRUE(Write().ok());
  const auto before = fs::last_write_time(Path());
  failure_ = absl::DataLossError("slice 3 was damaged on its way");
  const auto bytes = Write();
  EXPECT_TRUE(absl::IsDataLoss(bytes.status()));
  EXPECT_THAT(Files(), ElementsAre("runs/one/digits.safetensors"));
  EXPECT_EQ(fs::last_write_time(Path()), before);
}

TEST_F(OutputWriterTest, AShardThatIsAwayForAMomentIsAskedAgain) {
  failure_ = absl::UnavailableError("shard 1 at 127.0.0.1:9: connection refused");
  EXPECT_TRUE(Write().ok());
  EXPECT_EQ(reads_, 2);
}

TEST_F(OutputWriterTest, ValuesThatAreGoneAreNotReadAtAll) {
  job_.mutable_values(0)->set_gone("lost with shard ps-1");
  const auto bytes = Write();
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("lost with shard ps-1"));
  EXPECT_EQ(reads_, 0);
}

TEST_F(OutputWriterTest, StoppingGivesUpWithoutAnAnswer) {
  std::promise<void> reading;
  read_ = [&](const JobReply&, const Layout&, const ReadPoint&, absl::Time, const SliceConsumer&,
              const std::atomic<bool>& stop) -> absl::Status {
    reading.set_value();
    while (!stop) std::this_thread::yield();
    return absl::CancelledError("stopped");
  };
  bool answered = false;
  {
    OutputWriter writer(root_, read_);
    writer.Write(job_, [&](const auto&) { answered = true; });
    reading.get_future().wait();
  }
  EXPECT_FALSE(answered);
  EXPECT_TRUE(Files().empty());
}

}  // namespace
}  // namespace starling::coordinator
