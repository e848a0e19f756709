#include "server/coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

namespace starling::coordinator {
namespace {

// The file's header names its application (sqlite's application_id, "Strl") and its schema.
constexpr int kApplicationId = 0x5374726C;
constexpr int kSchema = 1;

int ReadInt(sqlite3* db, const char* pragma, int* out) {
  sqlite3_stmt* statement = nullptr;
  int rc = sqlite3_prepare_v2(db, pragma, -1, &statement, nullptr);
  if (rc == SQLITE_OK) rc = sqlite3_step(statement);
  if (rc == SQLITE_ROW) {
    *out = sqlite3_column_int(statement, 0);
    rc = SQLITE_OK;
  }
  sqlite3_finalize(statement);
  return rc;
}

void BindBytes(sqlite3_stmt* statement, int index, const std::string& bytes) {
  sqlite3_bind_blob64(statement, index, bytes.data(), bytes.size(), SQLITE_STATIC);
}

std::string ColumnBytes(sqlite3_stmt* statement, int column) {
  const void* data = sqlite3_column_blob(statement, column);
  const int size = sqlite3_column_bytes(statement, column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
}

// Which of the state's files, or its folder, this process may not use. Empty: none, as far as can
// be told. SQLite opens a file that it cannot write for reading, and then fails with an I/O error.
std::string WhyNoAccess(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent;
  for (const std::string& file : {folder, path, path + "-wal", path + "-journal"}) {
    const int needed = file == folder ? W_OK | X_OK : R_OK | W_OK;
    if (faccessat(AT_FDCWD, file.c_str(), needed, AT_EACCESS) == 0) continue;
    if (errno != EACCES && errno != EPERM && errno != EROFS) continue;
    const std::string error = std::strerror(errno);
    struct stat found = {};
    const std::string owner = stat(file.c_str(), &found) != 0
                                  ? ""
                                  : absl::StrFormat("; it belongs to user %d and has mode %04o",
                                                    found.st_uid, found.st_mode & 07777);
    return absl::StrCat(file, ": ", error, owner, "; the coordinator runs as user ", geteuid(),
                        file == folder ? ", which must be able to make files there"
                                       : ", which must be able to read and write it");
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path) {
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(path));
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path.c_str(), &store->db_, flags, nullptr) != SQLITE_OK) {
    return store->Error("open");
  }
  STARLING_RETURN_IF_ERROR(store->Initialize());
  return store;
}

SqliteStore::~SqliteStore() {
  sqlite3_finalize(put_);
  sqlite3_finalize(delete_);
  sqlite3_close(db_);
}

absl::Status SqliteStore::Initialize() {
  sqlite3_extended_result_codes(db_, 1);
  // The order matters: in WAL mode the lock is taken with the first access.
  STARLING_RETURN_IF_ERROR(Execute("PRAGMA locking_mode = EXCLUSIVE"));
  STARLING_RETURN_IF_ERROR(CheckSchema());
  STARLING_RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  STARLING_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  STARLING_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  STARLING_RETURN_IF_ERROR(
      Execute("CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, value BLOB NOT NULL) "
              "WITHOUT ROWID"));
  STARLING_RETURN_IF_ERROR(
      Execute(absl::StrCat("PRAGMA application_id = ", kApplicationId).c_str()));
  STARLING_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA user_version = ", kSchema).c_str()));
  STARLING_RETURN_IF_ERROR(Execute("COMMIT"));
  const char* put =
      "INSERT INTO records (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
  const char* remove = "DELETE FROM records WHERE key = ?1";
  if (sqlite3_prepare_v2(db_, put, -1, &put_, nullptr) != SQLITE_OK ||
      sqlite3_prepare_v2(db_, remove, -1, &delete_, nullptr) != SQLITE_OK) {
    return Error("prepare");
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::CheckSchema() {
  int application = 0;
  int schema = 0;
  int tables = 0;
  if (ReadInt(db_, "PRAGMA application_id", &application) != SQLITE_OK ||
      ReadInt(db_, "PRAGMA user_version", &schema) != SQLITE_OK ||
      ReadInt(db_, "SELECT count(*) FROM sqlite_schema", &tables) != SQLITE_OK) {
    return Error("read");
  }
  // New, or its first opening was interrupted.
  if (application == 0 && tables == 0) return absl::OkStatus();
  if (application != kApplicationId) {
    return absl::DataLossError(
        absl::StrCat(path_,
                     " is a database of another program: name another file for "
                     "the coordinator's state"));
  }
  if (schema > kSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " was written by a newer version (schema ", schema, "; this one knows ",
                     kSchema, "): start that version, or name another file"));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::Apply(const StoreBatch& batch) {
  STARLING_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status = Write(batch);
  if (status.ok()) status = Execute("COMMIT");
  // The original error is reported, whether or not the rollback succeeds.
  if (!status.ok()) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status.ok() ? CheckInPlace() : status;
}

// Data stored in an unlinked file is lost with the process.
absl::Status SqliteStore::CheckInPlace() const {
  int moved = 0;
  sqlite3_file_control(db_, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  if (moved == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the coordinator's state in ", path_,
                   " was deleted, moved or replaced while it ran: put a copy back, or name "
                   "another file (running jobs are lost then)"));
}

absl::Status SqliteStore::Write(const StoreBatch& batch) {
  for (const auto& [key, value] : batch.puts) {
    BindBytes(put_, 1, key);
    BindBytes(put_, 2, value);
    STARLING_RETURN_IF_ERROR(RunOnce(put_));
  }
  for (const std::string& key : batch.deletes) {
    BindBytes(delete_, 1, key);
    STARLING_RETURN_IF_ERROR(RunOnce(delete_));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::RunOnce(sqlite3_stmt* statement) {
  const int rc = sqlite3_step(statement);
  absl::Status status = rc == SQLITE_DONE ? absl::OkStatus() : Error("write");
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  return status;
}

absl::StatusOr<StoreSnapshot> SqliteStore::Load() {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(db_, "SELECT key, value FROM records", -1, &statement, nullptr) !=
      SQLITE_OK) {
    return Error("read");
  }
  absl::Cleanup finalize = [statement] { sqlite3_finalize(statement); };
  StoreSnapshot records;
  int rc = 0;
  while ((rc = sqlite3_step(statement)) == SQLITE_ROW) {
    records[ColumnBytes(statement, 0)] = ColumnBytes(statement, 1);
  }
  if (rc != SQLITE_DONE) return Error("read");
  return records;
}

absl::Status SqliteStore::Execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  return Error("use");
}

absl::Status SqliteStore::Error(const std::string& doing) const {
  const int code = sqlite3_errcode(db_) & 0xff;
  const bool may_lack_access = code == SQLITE_CANTOPEN || code == SQLITE_READONLY ||
                               code == SQLITE_IOERR || code == SQLITE_PERM;
  if (const std::string why = may_lack_access ? WhyNoAccess(path_) : ""; !why.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot ", doing, " the coordinator's state: ", why));
  }
  const std::string what = absl::StrCat("cannot ", doing, " the coordinator's state in ", path_,
                                        ": ", sqlite3_errmsg(db_));
  switch (code) {
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return absl::DataLossError(absl::StrCat(what,
                                              ". The file is damaged or no state file: restore a "
                                              "copy, or name another file (running jobs are "
                                              "lost then)"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(
          absl::StrCat(what, ". Another coordinator has it open: stop that one first"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ". Make room on the disk, then start again"));
    case SQLITE_CANTOPEN:
      return absl::NotFoundError(absl::StrCat(what, ". Its folder must exist and be writable"));
    default: return absl::UnavailableError(what);
  }
}

}  // namespace starling::coordinator
