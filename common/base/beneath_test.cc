#include "common/base/beneath.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace starling {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class BeneathTest : public testing::Test {
 protected:
  BeneathTest()
      : base_(fs::path(std::getenv("TEST_TMPDIR")) /
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::create_directories(base_ / "root");
    fs::create_directories(base_ / "outside");
  }
  BeneathRoot Root() { return *BeneathRoot::Open((base_ / "root").string()); }

  const fs::path base_;
};

TEST_F(BeneathTest, OpensAndMakesWhatLiesBeneath) {
  const BeneathRoot root = Root();
  EXPECT_TRUE(absl::IsNotFound(root.OpenFolder("a/b", false).status()));
  EXPECT_TRUE(absl::IsNotFound(root.OpenFile("a", O_RDONLY).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(BeneathRoot::Open((base_ / "nowhere").string()).status()));
  EXPECT_TRUE(root.OpenFolder("a/b", true).ok());
  EXPECT_TRUE(root.OpenFolder("a//b/", false).ok());
  EXPECT_TRUE(root.OpenFile("c/d/file", O_WRONLY | O_CREAT | O_EXCL).ok());
  EXPECT_TRUE(fs::exists(base_ / "root/c/d/file"));
  const auto again = root.OpenFile("c/d/file", O_WRONLY | O_CREAT | O_EXCL);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("root/c/d/file: File exists"));
}

TEST_F(BeneathTest, RefusesPathsThatSayTheyLeadOut) {
  const BeneathRoot root = Root();
  for (const absl::string_view bad :
       {"", "/etc", "..", "../outside", "a/../../outside", "./a", "a/."}) {
    EXPECT_EQ(root.OpenFolder(bad, true).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
    EXPECT_EQ(root.OpenFile(bad, O_RDONLY).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(root.OpenFile(absl::string_view("a\0b", 3), O_RDONLY).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BeneathTest, FollowsNoLink) {
  std::ofstream(base_ / "outside/file") << "x";
  fs::create_directory_symlink("../outside", base_ / "root/folder");
  fs::create_symlink("../outside/file", base_ / "root/file");
  fs::create_symlink("../outside/new", base_ / "root/dangling");
  const BeneathRoot root = Root();
  EXPECT_THAT(std::string(root.OpenFolder("folder/a", true).status().message()),
              HasSubstr("folder is a link"));
  EXPECT_FALSE(root.OpenFolder("folder", false).ok());
  EXPECT_FALSE(root.OpenFile("folder/file", O_RDONLY).ok());
  EXPECT_FALSE(root.OpenFile("file", O_RDONLY).ok());
  EXPECT_FALSE(root.OpenFile("dangling", O_WRONLY | O_CREAT).ok());
  EXPECT_FALSE(fs::exists(base_ / "outside/new"));
  EXPECT_FALSE(fs::exists(base_ / "outside/a"));
}

TEST_F(BeneathTest, TheRootItselfMayBeALink) {
  fs::create_directory_symlink("root", base_ / "to_root");
  const auto root = BeneathRoot::Open((base_ / "to_root").string());
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_TRUE(root->OpenFile("a/b", O_WRONLY | O_CREAT).ok());
  EXPECT_TRUE(fs::exists(base_ / "root/a/b"));
}

TEST_F(BeneathTest, BeneathTheRootOfAllLinksAreFollowed) {
  fs::create_directory_symlink("../outside", base_ / "root/folder");
  const auto all = BeneathRoot::Open("/");
  ASSERT_TRUE(all.ok()) << all.status();
  const std::string path = (base_ / "root/folder/a").string().substr(1);
  EXPECT_TRUE(all->OpenFolder(path, true).ok());
  EXPECT_TRUE(fs::exists(base_ / "outside/a"));
}

// An attacker swaps a folder for a link over and over, between any check and the open.
TEST_F(BeneathTest, ARaceForALinkLeadsNowhere) {
  fs::create_directories(base_ / "root/a");
  fs::create_directory_symlink("../outside", base_ / "root/link");
  std::atomic<bool> stop = false;
  std::thread attacker([&] {
    const std::string a = base_ / "root/a", link = base_ / "root/link";
    while (!stop) {
      // Swaps the two atomically.
      renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE);
    }
  });
  const BeneathRoot root = Root();
  int opened = 0;
  for (int i = 0; i < 20'000; ++i) {
    opened += root.OpenFile("a/file" + std::to_string(i % 100), O_WRONLY | O_CREAT).ok();
  }
  stop = true;
  attacker.join();
  EXPECT_GT(opened, 0);
  EXPECT_TRUE(fs::is_empty(base_ / "outside"));
}

}  // namespace
}  // namespace starling
