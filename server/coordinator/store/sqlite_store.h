// A StateStore in one SQLite file, with its -wal beside it: the coordinator's default.
#ifndef STARLING_SERVER_COORDINATOR_STORE_SQLITE_STORE_H_
#define STARLING_SERVER_COORDINATOR_STORE_SQLITE_STORE_H_

#include <memory>
#include <string>

#include "server/coordinator/store/state_store.h"

struct sqlite3;
struct sqlite3_stmt;

namespace starling::coordinator {

// Write-ahead log with synchronous=FULL: a batch is on disk when Apply returns. The file is locked
// while the store is open, so two coordinators cannot share it.
class SqliteStore : public StateStore {
 public:
  // Creates the file, but not its folder, if it does not exist. kDataLoss: not a state file, or
  // damaged; kFailedPrecondition: another schema, or open in another process. The message names the
  // file and what to do.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path);
  ~SqliteStore() override;
  SqliteStore(const SqliteStore&) = delete;
  SqliteStore& operator=(const SqliteStore&) = delete;

  absl::Status Apply(const StoreBatch& batch) override;
  absl::StatusOr<StoreSnapshot> Load() override;

 private:
  explicit SqliteStore(std::string path) : path_(std::move(path)) {}

  absl::Status Initialize();
  absl::Status CheckSchema();
  absl::Status CheckInPlace() const;
  absl::Status Execute(const char* sql);
  absl::Status Write(const StoreBatch& batch);
  absl::Status RunOnce(sqlite3_stmt* statement);
  absl::Status Error(const std::string& doing) const;

  const std::string path_;
  sqlite3* db_ = nullptr;
  sqlite3_stmt* put_ = nullptr;
  sqlite3_stmt* delete_ = nullptr;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_STORE_SQLITE_STORE_H_
