#include "tools/local/state_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"

namespace starling::local {
namespace fs = std::filesystem;
namespace {

absl::Status FileError(const std::string& what, const std::string& path,
                       const std::error_code& error) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", error.message()));
}

}  // namespace

absl::Status StateDirectory::Create() const {
  std::error_code error;
  const bool made = fs::create_directories(root_, error);
  if (error) return FileError("make the folder", root_, error);
  if (made) {
    fs::permissions(root_, fs::perms::owner_all, error);
    if (error) return FileError("protect the folder", root_, error);
  } else {
    STARLING_RETURN_IF_ERROR(CheckOurs());
  }
  for (const std::string& path :
       {root_ + "/logs", root_ + "/run", OutputsPath(), CheckpointsPath()}) {
    if (fs::create_directories(path, error); error)
      return FileError("make the folder", path, error);
    fs::permissions(path, fs::perms::owner_all, error);
    if (error) return FileError("protect the folder", path, error);
  }
  return absl::OkStatus();
}

absl::Status StateDirectory::CheckOurs() const {
  constexpr const char* kExpected =
      "expected a new or empty folder, or one of an earlier local cluster, in which only you may "
      "write";
  std::error_code error;
  struct stat found = {};
  if (stat(root_.c_str(), &found) != 0) {
    return FileError("look at the folder", root_, std::error_code(errno, std::system_category()));
  }
  if (found.st_uid != geteuid())
    return absl::FailedPreconditionError(
        absl::StrCat(kExpected, ": ", root_, " belongs to user ", found.st_uid));
  const fs::perms perms = fs::status(root_, error).permissions();
  if (error) return FileError("look at the folder", root_, error);
  if ((perms & (fs::perms::group_write | fs::perms::others_write)) != fs::perms::none) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: others may write in %s (mode %04o): choose a folder of its own with "
                        "--state, or take that right from them",
                        kExpected, root_, static_cast<unsigned>(perms)));
  }
  if (fs::exists(LockPath(), error)) return absl::OkStatus();
  static const auto* const kNames = new std::set<std::string>{"lock",
                                                              "address",
                                                              "coordinator",
                                                              "coordinator.before",
                                                              "coordinator.forgotten",
                                                              "outputs",
                                                              "checkpoints",
                                                              "logs",
                                                              "run"};
  fs::directory_iterator entries(root_, error);
  if (error) return FileError("list the folder", root_, error);
  for (const auto& entry : entries) {
    if (kNames->contains(entry.path().filename().string())) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(kExpected, ": ", root_, " has ", entry.path().filename().string(),
                     " in it: choose a folder of its own with --state"));
  }
  return absl::OkStatus();
}

absl::Status StateDirectory::Clear(bool fresh) const {
  STARLING_RETURN_IF_ERROR(PutBack());
  std::error_code error;
  std::vector<std::string> old = {AddressPath(), ForgottenPath()};
  if (fresh && fs::exists(CoordinatorStatePath(), error)) {
    fs::rename(CoordinatorStatePath(), BeforePath(), error);
    if (error) return FileError("move", CoordinatorStatePath(), error);
  }
  // Not the folder itself: a second `local up`, which has no lock, may be about to make it.
  for (const auto& entry : fs::directory_iterator(root_ + "/run", error)) {
    if (fresh || entry.path().extension() == ".pid") old.push_back(entry.path().string());
  }
  for (const std::string& path : old) {
    if (fs::remove_all(path, error); error) return FileError("remove", path, error);
  }
  return Create();
}

// At once: if it is interrupted, half of the state must not be put back.
absl::Status StateDirectory::Forget() const {
  std::error_code error;
  if (!fs::exists(BeforePath(), error)) return absl::OkStatus();
  fs::rename(BeforePath(), ForgottenPath(), error);
  if (error) return FileError("move", BeforePath(), error);
  if (fs::remove_all(ForgottenPath(), error); error)
    return FileError("remove", ForgottenPath(), error);
  return absl::OkStatus();
}

absl::Status StateDirectory::PutBack() const {
  std::error_code error;
  if (!fs::exists(BeforePath(), error)) return absl::OkStatus();
  if (fs::remove_all(CoordinatorStatePath(), error); error)
    return FileError("remove", CoordinatorStatePath(), error);
  fs::rename(BeforePath(), CoordinatorStatePath(), error);
  if (error) return FileError("move", BeforePath(), error);
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateDirectory::ReadAddress() const {
  STARLING_ASSIGN_OR_RETURN(std::string address, ReadSmallFile(AddressPath()));
  if (address.empty()) return absl::NotFoundError(AddressPath() + " is empty");
  return address;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::Status WriteSmallFile(const std::string& path, const std::string& text) {
  return ReplaceFile(path, {text, "\n"});
}

std::string LastLines(const std::string& path, int count) {
  std::ifstream in(path, std::ios::ate);
  if (!in) return "";
  constexpr std::streamoff kTailBytes = 16 << 10;
  in.seekg(std::max<std::streamoff>(0, in.tellg() - kTailBytes));
  std::deque<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
    if (lines.size() > static_cast<size_t>(count)) lines.pop_front();
  }
  std::string out;
  for (const std::string& line : lines) absl::StrAppend(&out, "  ", line, "\n");
  return out;
}

}  // namespace starling::local
