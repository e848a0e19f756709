#include "tools/local/state_directory.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
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
  for (const std::string& path :
       {root_, root_ + "/logs", root_ + "/run", OutputsPath(), CheckpointsPath()}) {
    std::error_code error;
    if (fs::create_directories(path, error); error)
      return FileError("make the folder", path, error);
    fs::permissions(path, fs::perms::owner_all, error);
    if (error) return FileError("protect the folder", path, error);
  }
  return absl::OkStatus();
}

absl::Status StateDirectory::Clear(bool fresh) const {
  std::error_code error;
  std::vector<std::string> old = {AddressPath()};
  if (fresh) old.push_back(CoordinatorStatePath());
  // Not the folder itself: a second `local up`, which has no lock, may be about to make it.
  for (const auto& entry : fs::directory_iterator(root_ + "/run", error)) {
    if (fresh || entry.path().extension() == ".pid") old.push_back(entry.path().string());
  }
  for (const std::string& path : old) {
    if (fs::remove_all(path, error); error) return FileError("remove", path, error);
  }
  return Create();
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
