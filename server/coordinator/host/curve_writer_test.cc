#include "server/coordinator/host/curve_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/tensorboard/curve_events.h"

namespace starling::coordinator {
namespace {

class CurveWriterTest : public testing::Test {
 protected:
  CurveWriterTest()
      : folder_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                             testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  CurveNews News(uint64_t job, uint64_t step) {
    CurveNews news{.job = job, .folder = folder_};
    news.point.emplace().set_step(step);
    return news;
  }
  absl::Status Check(CurveWriter& writer, const std::string& folder) {
    std::promise<absl::Status> done;
    writer.Check(folder, [&](absl::Status status) { done.set_value(std::move(status)); });
    return done.get_future().get();
  }
  // The files' texts, by name.
  std::vector<std::string> Files() {
    std::map<std::string, std::string> texts;
    if (!std::filesystem::exists(folder_)) return {};
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      texts[entry.path()] = text.str();
    }
    std::vector<std::string> all;
    for (auto& [name, text] : texts) all.push_back(text);
    return all;
  }
  static bool Has(const std::string& file, const tensorboard::Event& event) {
    return file.find(tensorboard::RecordFrame(event.SerializeAsString())) != std::string::npos;
  }

  const std::string folder_;
};

TEST_F(CurveWriterTest, AJobHasOneFileWithItsPointsAndTests) {
  {
    CurveWriter writer("/");
    for (const uint64_t step : {10, 20}) writer.Write(News(1, step));
    CurveNews tested{.job = 1, .folder = folder_};
    tested.result.emplace().set_evaluated(true);
    tested.result->set_step(20);
    writer.Write(tested);
    writer.Write({.job = 1, .folder = folder_, .over = true});
  }
  const std::vector<std::string> files = Files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE(Has(files[0], tensorboard::PointEvent(*News(1, 10).point)));
  EXPECT_TRUE(Has(files[0], tensorboard::PointEvent(*News(1, 20).point)));
  EpochResult result;
  result.set_evaluated(true);
  result.set_step(20);
  EXPECT_TRUE(Has(files[0], *tensorboard::EpochEvent(result)));
}

TEST_F(CurveWriterTest, ACoordinatorThatStartsAgainBeginsASession) {
  for (const uint64_t session : {0, 31}) {
    CurveWriter writer("/");
    CurveNews news = News(1, session + 10);
    news.session_step = session;
    writer.Write(news);
  }
  const std::vector<std::string> files = Files();
  ASSERT_EQ(files.size(), 2u);
  int sessions = 0;
  for (const std::string& file : files) {
    tensorboard::Event start;
    start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    start.set_step(31);
    // Wall times differ; what follows them is the same.
    sessions += file.find(start.SerializeAsString()) != std::string::npos;
  }
  EXPECT_EQ(sessions, 1);
}

TEST_F(CurveWriterTest, AJobThatGoesBackBeginsASession) {
  {
    CurveWriter writer("/");
    writer.Write(News(1, 50));
    for (const uint64_t step : {41, 45}) {
      CurveNews news = News(1, step);
      news.session_step = 31;
      writer.Write(news);
    }
  }
  const std::vector<std::string> files = Files();
  ASSERT_EQ(files.size(), 2u);
  const auto count = [&](uint64_t step) {
    return Has(files[0], tensorboard::PointEvent(*News(1, step).point)) +
           2 * Has(files[1], tensorboard::PointEvent(*News(1, step).point));
  };
  EXPECT_NE(count(41), count(50));
  EXPECT_EQ(count(41), count(45));
}

TEST_F(CurveWriterTest, AJobThatGoesBackTwiceToOneStepBeginsTwoSessions) {
  {
    CurveWriter writer("/");
    for (const uint32_t era : {1, 2}) {
      CurveNews news = News(1, 41);
      news.session_step = 31;
      news.era = era;
      writer.Write(news);
    }
  }
  const std::vector<std::string> files = Files();
  ASSERT_EQ(files.size(), 2u);
  for (const std::string& file : files)
    EXPECT_TRUE(Has(file, tensorboard::PointEvent(*News(1, 41).point)));
}

TEST_F(CurveWriterTest, AJobThatEndsBeforeItsFirstPointLeavesNoFile) {
  {
    CurveWriter writer("/");
    writer.Write({.job = 1, .folder = folder_, .over = true});
  }
  EXPECT_TRUE(Files().empty());
}

TEST_F(CurveWriterTest, AFolderThatIsLostIsTriedAgain) {
  std::ofstream(folder_) << "in the way";
  CurveWriter writer("/");
  EXPECT_FALSE(Check(writer, folder_).ok());
  writer.Write(News(1, 10));
  EXPECT_FALSE(Check(writer, folder_).ok()) << "and the point was tried before";
  std::filesystem::remove(folder_);
  writer.Write(News(1, 20));
  EXPECT_TRUE(Check(writer, folder_).ok());
  ASSERT_EQ(Files().size(), 1u);
  EXPECT_TRUE(Has(Files()[0], tensorboard::PointEvent(*News(1, 20).point)));
}

TEST_F(CurveWriterTest, NothingIsMadeOutsideOfItsRoot) {
  const std::string root = absl::StrCat(folder_, "/root");
  const std::string beside = absl::StrCat(folder_, "/rootless");
  std::filesystem::create_directories(root);
  std::filesystem::create_directories(beside);
  std::filesystem::create_directory_symlink("../rootless", absl::StrCat(root, "/link"));
  CurveWriter writer(root);
  EXPECT_TRUE(Check(writer, absl::StrCat(root, "/a/b")).ok());
  for (const std::string& bad : {absl::StrCat(beside, "/a"), absl::StrCat(root, "/../rootless/a"),
                                 absl::StrCat(root, "/link/a"), folder_}) {
    const absl::Status status = Check(writer, bad);
    const bool link = bad == absl::StrCat(root, "/link/a");
    EXPECT_EQ(status.code(),
              link ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(link ? "link is a link, which may lead out of"
                                         : "does not lie beneath --tensorboard-root"),
              absl::string_view::npos)
        << bad << status;
    CurveNews news = News(1, 1);
    news.folder = bad;
    writer.Write(news);
  }
  EXPECT_FALSE(Check(writer, beside).ok()) << "and what came before was written";
  EXPECT_TRUE(std::filesystem::is_empty(beside));
  CurveWriter nowhere("");
  EXPECT_FALSE(Check(nowhere, root).ok());
}

// A folder keeps turning into a link out of the root, also between any check and the opening.
TEST_F(CurveWriterTest, ARaceForALinkLeadsNowhere) {
  const std::string root = absl::StrCat(folder_, "/root");
  const std::string beside = absl::StrCat(folder_, "/beside");
  std::filesystem::create_directories(absl::StrCat(root, "/a"));
  std::filesystem::create_directories(beside);
  std::filesystem::create_directory_symlink("../beside", absl::StrCat(root, "/link"));
  std::atomic<bool> stop = false;
  std::thread attacker([&] {
    const std::string a = absl::StrCat(root, "/a"), link = absl::StrCat(root, "/link");
    while (!stop) renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE);
  });
  {
    CurveWriter writer(root);
    for (uint64_t job = 1; job <= 5'000; ++job) {
      CurveNews news = News(job, 10);
      news.folder = absl::StrCat(root, "/a");
      writer.Write(news);
      writer.Write({.job = job, .folder = news.folder, .over = true});
    }
  }
  stop = true;
  attacker.join();
  EXPECT_TRUE(std::filesystem::is_empty(beside));
}

TEST_F(CurveWriterTest, NewsThatWaitForTheDiskAreBounded) {
  CurveWriter writer("/");
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  std::promise<void> blocked;
  writer.Check(folder_, [&](const absl::Status&) {
    blocked.set_value();
    gone.wait();
  });
  blocked.get_future().wait();
  for (uint64_t i = 1; i <= CurveWriter::kWaitingMax + 5; ++i) writer.Write(News(1, i));
  writer.Write({.job = 1, .folder = folder_, .over = true});
  go.set_value();
  EXPECT_TRUE(Check(writer, folder_).ok());
  ASSERT_EQ(Files().size(), 1u);
  EXPECT_TRUE(Has(Files()[0], tensorboard::PointEvent(*News(1, CurveWriter::kWaitingMax).point)));
  EXPECT_FALSE(
      Has(Files()[0], tensorboard::PointEvent(*News(1, CurveWriter::kWaitingMax + 1).point)));
  writer.Write(News(2, 1));
  EXPECT_TRUE(Check(writer, folder_).ok());
  EXPECT_EQ(Files().size(), 2u) << "it takes news again";
}

}  // namespace
}  // namespace starling::coordinator
