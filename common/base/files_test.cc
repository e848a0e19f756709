#include "common/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

std::string PathOf(const std::string& name) { return absl::StrCat(testing::TempDir(), "/", name); }

TEST(Files, ReadsWhatWasWritten) {
  const std::string path = PathOf("written");
  {
    const OwnedFd out(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
    ASSERT_TRUE(WriteAll(out.get(), "0123456789", path).ok());
  }
  const auto file = OpenRegularFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes, 10u);
  std::vector<uint8_t> out(4);
  ASSERT_TRUE(ReadWithin(file->fd.get(), 6, absl::MakeSpan(out), path).ok());
  EXPECT_EQ(std::string(out.begin(), out.end()), "6789");
  const auto got = ReadFileAt(file->fd.get(), 8, absl::MakeSpan(out), path);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, 2u);
  const absl::Status beyond = ReadWithin(file->fd.get(), 7, absl::MakeSpan(out), path);
  EXPECT_TRUE(absl::IsDataLoss(beyond)) << beyond;
}

TEST(Files, ErrorsNameThePathAndTheCause) {
  const absl::Status missing = OpenRegularFile("/no/such/file").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_EQ(missing.message(), "cannot open /no/such/file: No such file or directory");
  const absl::Status folder = OpenRegularFile(testing::TempDir()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(folder));
  EXPECT_THAT(std::string(folder.message()), HasSubstr("expected a regular file"));
  const std::string pipe = PathOf("pipe");
  ASSERT_TRUE(mkfifo(pipe.c_str(), 0600) == 0 || errno == EEXIST);
  EXPECT_TRUE(absl::IsInvalidArgument(OpenRegularFile(pipe).status()));
  const OwnedFd full(open("/dev/full", O_WRONLY));
  EXPECT_TRUE(absl::IsResourceExhausted(WriteAll(full.get(), "0", "/dev/full")));
}

TEST(Files, AReadErrorIsReported) {
  const absl::Status folder = ReadText(testing::TempDir()).status();
  EXPECT_EQ(folder.message(), absl::StrCat("cannot read ", testing::TempDir(), ": Is a directory"));
}

TEST(Files, EntriesAreCountedWithoutTheFolderItselfAndItsParent) {
  const std::string folder = PathOf("counted");
  std::filesystem::create_directory(folder);
  EXPECT_EQ(CountEntries(folder.c_str()), 0u);
  ASSERT_TRUE(ReplaceFile(folder + "/a", {"x"}).ok());
  EXPECT_EQ(CountEntries(folder.c_str()), 1u);
  const OwnedFd removed(open(folder.c_str(), O_RDONLY | O_DIRECTORY));
  std::filesystem::remove_all(folder);
  // Such a folder has no "." either.
  EXPECT_EQ(CountEntries(absl::StrCat("/proc/self/fd/", removed.get()).c_str()), 0u);
  EXPECT_EQ(CountEntries(folder.c_str()), 0u);
}

TEST(Files, TextIsReplacedAtOnce) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/replaced");
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/a";
  ASSERT_TRUE(ReplaceFile(path, {"one, ", "two"}).ok());
  EXPECT_EQ(ReadText(path).value(), "one, two");
  ASSERT_TRUE(ReplaceFile(path, {"three"}).ok());
  EXPECT_EQ(ReadText(path).value(), "three");
  const auto there = std::filesystem::directory_iterator(folder);
  EXPECT_EQ(std::distance(begin(there), end(there)), 1) << "no temporary file is left";
  EXPECT_EQ(ReplaceFile(folder + "/none/a", {"x"}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadText(folder + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(ReplaceFile("/dev/null", {"x"}).ok()) << "written in place";
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

TEST(Files, AReplacedFileKeepsItsModeAndANewOneHonoursTheUmask) {
  const std::string path = PathOf("mode");
  std::filesystem::remove(path);
  const mode_t old = umask(027);
  const absl::Status created = ReplaceFile(path, {"one"});
  umask(old);
  ASSERT_TRUE(created.ok()) << created;
  EXPECT_EQ(ModeOf(path), 0640u);
  ASSERT_EQ(chmod(path.c_str(), 0604), 0);
  ASSERT_TRUE(ReplaceFile(path, {"two"}).ok());
  EXPECT_EQ(ModeOf(path), 0604u);
}

TEST(Files, ALinkStaysOne) {
  const std::string path = PathOf("linked");
  const std::string link = PathOf("link");
  ASSERT_TRUE(ReplaceFile(path, {"one"}).ok());
  std::filesystem::remove(link);
  std::filesystem::create_symlink("linked", link);
  ASSERT_TRUE(ReplaceFile(link, {"two"}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadText(path).value(), "two");
}

TEST(Files, WhatIsNotCommittedLeavesNothing) {
  const std::string folder = PathOf("uncommitted");
  std::filesystem::create_directory(folder);
  {
    auto file = FileReplacement::Begin(folder + "/a");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->Write("one").ok());
    EXPECT_FALSE(std::filesystem::is_empty(folder));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Files, AFolderOrNoNameIsNoFileToWrite) {
  const auto error = [](const std::string& path) {
    const absl::Status status = ReplaceFile(path, {"x"});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << path;
    return std::string(status.message());
  };
  const std::string folder = PathOf("a_folder");
  std::filesystem::create_directory(folder);
  EXPECT_EQ(error(""), "expected the name of a file to write, got an empty one");
  for (const std::string& path : {folder, folder + "/", folder + "/none/"}) {
    EXPECT_EQ(error(path), absl::StrCat("expected the name of a file to write, got the folder ",
                                        path, ": name a file in it"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Files, WithinAFolderNoLinkIsFollowed) {
  const std::string folder = PathOf("within");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const auto begin = [&](const std::string& name) {
    return FileReplacement::BeginIn(OwnedFd(open(folder.c_str(), O_RDONLY | O_DIRECTORY)), name,
                                    folder + "/" + name);
  };
  ASSERT_TRUE(ReplaceFile(folder + "/a", {"one"}).ok());
  ASSERT_EQ(chmod((folder + "/a").c_str(), 0604), 0);
  std::filesystem::create_symlink("a", folder + "/link");
  EXPECT_THAT(std::string(begin("link").status().message()), HasSubstr("is no regular file"));
  std::filesystem::create_symlink("other", folder + "/a.partial");
  auto file = begin("a");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->Write("two").ok());
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(ReadText(folder + "/a").value(), "two");
  EXPECT_EQ(ModeOf(folder + "/a"), 0604u);
  EXPECT_FALSE(std::filesystem::exists(folder + "/other"));
}

TEST(Files, AnErrorSaysThatItIsTheTemporaryFilesFolder) {
  EXPECT_THAT(std::string(ReplaceFile("/no/such/file", {"x"}).message()),
              HasSubstr("cannot create a file beside /no/such/file: No such file"));
}

}  // namespace
}  // namespace starling
