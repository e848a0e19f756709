// The contract of every StateStore, for all implementations; then what only the one in a file
// promises.
#include "server/coordinator/store/state_store.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/store/sqlite_store.h"
#include "server/coordinator/store/testing/memory_store.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/store_XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

std::unique_ptr<SqliteStore> MustOpen(const std::string& path) {
  auto store = SqliteStore::Open(path);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<StateStore>()> make;
};

class StateStoreTest : public ::testing::TestWithParam<Implementation> {
 protected:
  std::unique_ptr<StateStore> store = GetParam().make();
};

TEST_P(StateStoreTest, BeginsEmpty) { EXPECT_EQ(*store->Load(), StoreSnapshot()); }

TEST_P(StateStoreTest, PutsReplaceAndDeletesRemove) {
  ASSERT_TRUE(store->Apply({{{"a", "1"}, {"b", "2"}}, {}}).ok());
  ASSERT_TRUE(store->Apply({{{"a", "3"}, {"c", "4"}}, {"b", "never there"}}).ok());
  EXPECT_EQ(*store->Load(), (StoreSnapshot{{"a", "3"}, {"c", "4"}}));
  ASSERT_TRUE(store->Apply({}).ok());
  EXPECT_EQ(store->Load()->size(), 2u);
}

TEST_P(StateStoreTest, KeepsAnyBytes) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  const std::string large(3 << 20, 'x');
  ASSERT_TRUE(
      store->Apply({{{all, all}, {"", "empty key"}, {"empty value", ""}, {"large", large}}, {}})
          .ok());
  EXPECT_EQ(*store->Load(),
            (StoreSnapshot{{all, all}, {"", "empty key"}, {"empty value", ""}, {"large", large}}));
}

INSTANTIATE_TEST_SUITE_P(
    All, StateStoreTest,
    ::testing::Values(Implementation{"Memory", [] { return std::make_unique<MemoryStore>(); }},
                      Implementation{"Sqlite", [] { return MustOpen(NewFolder() + "/state.db"); }}),
    [](const auto& info) { return info.param.name; });

// ---- SQLite ----

void Overwrite(const std::string& path, size_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file << bytes;
}

TEST(SqliteStore, IsDurableAfterReopening) {
  const std::string path = NewFolder() + "/state.db";
  ASSERT_TRUE(MustOpen(path)->Apply({{{"a", "1"}}, {}}).ok());
  EXPECT_EQ(*MustOpen(path)->Load(), (StoreSnapshot{{"a", "1"}}));
}

// The state after `kill -9`: the files are copied while the store is open, before a checkpoint.
TEST(SqliteStore, WhatWasAppliedSurvivesAKill) {
  const std::string folder = NewFolder();
  auto store = MustOpen(folder + "/state.db");
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(
        store->Apply({{{"counter", std::to_string(i)}, {"other", std::to_string(i)}}, {}}).ok());
  }
  const std::string copy = NewFolder();
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::filesystem::copy(file, copy + "/" + file.path().filename().string());
  }
  EXPECT_EQ(*MustOpen(copy + "/state.db")->Load(),
            (StoreSnapshot{{"counter", "99"}, {"other", "99"}}));
}

// The log is cut at any byte: each batch is there as a whole or not at all.
TEST(SqliteStore, ABatchIsAtomicWhereverTheLogIsTorn) {
  const std::string folder = NewFolder();
  auto store = MustOpen(folder + "/state.db");
  for (int i = 0; i < 8; ++i) {
    const std::string value(5000, static_cast<char>('a' + i));
    ASSERT_TRUE(store->Apply({{{"x", value}, {"y", value}, {"z", value}}, {}}).ok());
  }
  const auto log_size = std::filesystem::file_size(folder + "/state.db-wal");
  int different = 0;
  std::string last;
  for (size_t size = log_size; size > 0; size -= std::min<size_t>(size, 1371)) {
    const std::string copy = NewFolder();
    std::filesystem::copy(folder + "/state.db", copy + "/state.db");
    std::filesystem::copy(folder + "/state.db-wal", copy + "/state.db-wal");
    std::filesystem::resize_file(copy + "/state.db-wal", size);
    auto torn = SqliteStore::Open(copy + "/state.db");
    ASSERT_TRUE(torn.ok()) << torn.status();
    const StoreSnapshot records = *(*torn)->Load();
    if (records.empty()) continue;
    EXPECT_EQ(records.at("x"), records.at("y"));
    EXPECT_EQ(records.at("x"), records.at("z"));
    different += records.at("x") != last;
    last = records.at("x");
  }
  EXPECT_GT(different, 3) << "cuts hit different batches";
}

TEST(SqliteStore, AFileThatIsGoneStoresNothing) {
  const std::string path = NewFolder() + "/state.db";
  const auto store = MustOpen(path);
  ASSERT_TRUE(store->Apply({{{"a", "1"}}, {}}).ok());
  std::filesystem::remove(path);
  const absl::Status status = store->Apply({{{"b", "2"}}, {}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("was deleted, moved or replaced"), absl::string_view::npos)
      << status;
}

TEST(SqliteStore, ADamagedFileIsAClearError) {
  const std::string path = NewFolder() + "/state.db";
  std::ofstream(path) << std::string(8192, 'z');
  const auto garbage = SqliteStore::Open(path);
  EXPECT_EQ(garbage.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(garbage.status().message()), HasSubstr(path));
  EXPECT_THAT(std::string(garbage.status().message()), HasSubstr("restore a copy"));
}

TEST(SqliteStore, DamageInsideIsFoundWhenItIsRead) {
  const std::string path = NewFolder() + "/state.db";
  ASSERT_TRUE(MustOpen(path)->Apply({{{"a", std::string(100'000, 'v')}}, {}}).ok());
  for (size_t page = 1; page < 4; ++page) Overwrite(path, page * 4096, std::string(4096, '\x7f'));
  auto store = SqliteStore::Open(path);
  const absl::Status status = store.ok() ? (*store)->Load().status() : store.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(SqliteStore, RefusesANewerSchemaAndForeignDatabases) {
  const std::string path = NewFolder() + "/state.db";
  MustOpen(path);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version = 99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const auto newer = SqliteStore::Open(path);
  EXPECT_EQ(newer.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(newer.status().message()), HasSubstr("schema 99"));

  const std::string foreign = NewFolder() + "/other.db";
  ASSERT_EQ(sqlite3_open(foreign.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "CREATE TABLE t (x)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(std::string(SqliteStore::Open(foreign).status().message()),
              HasSubstr("another program"));
}

TEST(SqliteStore, OneOwnerAtATime) {
  const std::string path = NewFolder() + "/state.db";
  auto first = MustOpen(path);
  const auto second = SqliteStore::Open(path);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("Another coordinator has it open"));
  first.reset();
  EXPECT_TRUE(SqliteStore::Open(path).ok());
}

// In a process without privileges: root may write everything.
std::string OpenWithoutPrivileges(const std::string& path) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    const std::string status = SqliteStore::Open(path).status().ToString();
    _exit(write(ends[1], status.data(), status.size()) < 0);
  }
  close(ends[1]);
  std::string status(4096, 0);
  const ssize_t bytes = read(ends[0], status.data(), status.size());
  close(ends[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return status.substr(0, static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
}

TEST(SqliteStore, AFileWithoutPermissionIsNamed) {
  std::string folder = "/tmp/store_XXXXXX";  // others than the owner reach it
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/state.db";
  ASSERT_TRUE(MustOpen(path)->Apply({{{"a", "1"}}, {}}).ok());
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  ASSERT_EQ(chmod(path.c_str(), 0444), 0);
  std::string status = OpenWithoutPrivileges(path);
  EXPECT_THAT(status, AllOf(HasSubstr("PERMISSION_DENIED"),
                            HasSubstr(path + ": Permission denied; it belongs to user "),
                            HasSubstr(" and has mode 0444; the coordinator runs as user "),
                            HasSubstr("must be able to read and write it")));
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0555), 0);
  status = OpenWithoutPrivileges(path);
  EXPECT_THAT(status, AllOf(HasSubstr("state: " + folder + ": Permission denied"),
                            HasSubstr("must be able to make files there")));
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  EXPECT_EQ(OpenWithoutPrivileges(path), "OK");
  std::filesystem::remove_all(folder);
}

TEST(SqliteStore, AMissingFolderIsNamed) {
  const auto store = SqliteStore::Open("/nonexistent/folder/state.db");
  EXPECT_EQ(store.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("/nonexistent/folder/state.db"));
}

}  // namespace
}  // namespace starling::coordinator
