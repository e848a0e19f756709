#include "common/checkpoint/disk.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/names.h"
#include "common/defences.h"

namespace starling {

absl::Status CheckDiskName(absl::string_view name) {
  if (!name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
      name.find('\0') == name.npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected the name of a file or folder in a checkpoint root, got \"",
                   absl::CHexEscape(name.substr(0, 200)), "\""));
}

absl::StatusOr<std::string> ReadWholeFile(CheckpointDisk& disk, const std::string& folder,
                                          const std::string& name, uint64_t bytes_max,
                                          bool from_disk) {
  STARLING_ASSIGN_OR_RETURN(const auto file, disk.Open(folder, name, from_disk));
  if (file->bytes() > bytes_max) {
    return absl::DataLossError(absl::StrCat(folder, "/", name, ": expected at most ", bytes_max,
                                            " bytes, got ", file->bytes()));
  }
  std::string text(file->bytes(), '\0');
  STARLING_RETURN_IF_ERROR(
      file->ReadAt(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return text;
}

absl::Status WriteWholeFile(CheckpointDisk& disk, const std::string& folder,
                            const std::string& name, absl::string_view bytes) {
  const std::string partial = absl::StrCat(name, kPartialSuffix);
  const auto write = [&]() -> absl::Status {
    STARLING_ASSIGN_OR_RETURN(const auto file, disk.Create(folder, partial));
    STARLING_RETURN_IF_ERROR(file->Append(bytes));
    if (!DefenceMasked(Defence::kFileSync)) STARLING_RETURN_IF_ERROR(file->Sync());
    return disk.Rename(folder, partial, name);
  };
  if (const absl::Status status = write(); !status.ok()) {
    disk.Remove(folder, partial).IgnoreError();
    return status;
  }
  return DefenceMasked(Defence::kFolderSync) ? absl::OkStatus() : disk.SyncFolder(folder);
}

}  // namespace starling
