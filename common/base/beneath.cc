#include "common/base/beneath.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;

absl::StatusOr<std::vector<std::string>> Components(absl::string_view path) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("expected a relative path without \"..\" or \".\", got \"",
                   absl::CHexEscape(path.substr(0, 200)), "\""));
  if (path.empty() || path[0] == '/' || path.find('\0') != path.npos) return bad;
  std::vector<std::string> components = absl::StrSplit(path, '/', absl::SkipEmpty());
  for (const std::string& component : components) {
    if (component == ".." || component == ".") return bad;
  }
  return components;
}

}  // namespace

absl::StatusOr<BeneathRoot> BeneathRoot::Open(const std::string& root) {
  OwnedFd fd(open(root.c_str(), kFolder));
  if (fd.open()) return BeneathRoot(root, std::move(fd));
  return absl::FailedPreconditionError(
      absl::StrCat("cannot open the folder ", root, ": ", std::strerror(errno)));
}

int BeneathRoot::no_follow() const { return path_ == "/" ? 0 : O_NOFOLLOW; }

absl::Status BeneathRoot::CannotOpen(int folder, const std::string& name, absl::string_view shown,
                                     int error) const {
  struct stat entry;
  const bool link = fstatat(folder, name.c_str(), &entry, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISLNK(entry.st_mode) && no_follow() != 0;
  const std::string text =
      absl::StrCat("cannot open ", path_, path_.ends_with('/') ? "" : "/", shown, ": ",
                   link ? absl::StrCat(name, " is a link, which may lead out of ", path_)
                        : std::string(std::strerror(error)));
  switch (error) {
    case ENOENT: return absl::NotFoundError(text);
    case ELOOP:
    case ENOTDIR: return absl::InvalidArgumentError(text);
    case EACCES:
    case EPERM:
      if (!shown.empty()) return absl::PermissionDeniedError(text);
      [[fallthrough]];
    default: return absl::FailedPreconditionError(text);
  }
}

absl::StatusOr<OwnedFd> BeneathRoot::Walk(const std::vector<std::string>& folders,
                                          bool make) const {
  OwnedFd at(openat(fd_.get(), ".", kFolder));
  if (!at.open()) return CannotOpen(fd_.get(), ".", "", errno);
  for (size_t i = 0; i < folders.size(); ++i) {
    const std::string& name = folders[i];
    const auto shown = [&] { return absl::StrJoin(folders.begin(), folders.begin() + i + 1, "/"); };
    int next = openat(at.get(), name.c_str(), kFolder | no_follow());
    if (next < 0 && errno == ENOENT && make) {
      if (mkdirat(at.get(), name.c_str(), 0777) != 0 && errno != EEXIST) {
        const int error = errno;
        return absl::FailedPreconditionError(absl::StrCat("cannot make the folder ", path_,
                                                          path_.ends_with('/') ? "" : "/", shown(),
                                                          ": ", std::strerror(error)));
      }
      next = openat(at.get(), name.c_str(), kFolder | no_follow());
    }
    if (next < 0) {
      const int error = errno;
      return CannotOpen(at.get(), name, shown(), error);
    }
    at.Reset(next);
  }
  return at;
}

absl::StatusOr<OwnedFd> BeneathRoot::OpenFolder(absl::string_view path, bool make) const {
  std::vector<std::string> components;
  if (path != ".") {
    STARLING_ASSIGN_OR_RETURN(components, Components(path));
  }
  STARLING_ASSIGN_OR_RETURN(const OwnedFd folder, Walk(components, make));
  OwnedFd readable(openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!readable.open()) return CannotOpen(folder.get(), ".", path == "." ? "" : path, errno);
  return readable;
}

absl::StatusOr<OwnedFd> BeneathRoot::OpenFile(absl::string_view path, int flags,
                                              mode_t mode) const {
  STARLING_ASSIGN_OR_RETURN(std::vector<std::string> components, Components(path));
  const std::string name = std::move(components.back());
  components.pop_back();
  STARLING_ASSIGN_OR_RETURN(const OwnedFd folder, Walk(components, (flags & O_CREAT) != 0));
  OwnedFd file(openat(folder.get(), name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!file.open()) return CannotOpen(folder.get(), name, path, errno);
  return file;
}

}  // namespace starling
