#include "common/checkpoint/reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/store.h"
#include "common/defences.h"
#include "common/placement/layout.h"

namespace starling {
namespace {

absl::Status CheckDigest(const std::string& path, absl::string_view text,
                         std::optional<uint64_t> digest) {
  const uint64_t found = ManifestDigest(text);
  if (!digest || *digest == found) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, ": expected the digest ", ToHex(*digest),
                                                    ", got ", ToHex(found),
                                                    ": it is not the manifest that was chosen"));
}

// The elements of each parameter.
absl::StatusOr<std::map<std::string, uint64_t>> ElementsOf(const JobSpec& spec) {
  const absl::StatusOr<Layout> layout = MakeLayout(spec);
  if (!layout.ok()) return absl::DataLossError(layout.status().message());
  std::map<std::string, uint64_t> elements;
  for (int i = 0; i < spec.model().parameters_size(); ++i)
    elements[spec.model().parameters(i).name()] = layout->parameters[i].elements;
  return elements;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    std::shared_ptr<CheckpointDisk> disk, const CheckpointId& id, std::optional<uint64_t> digest) {
  return OpenFolder(*disk, ToString(id), id, digest);
}

absl::Status CheckpointReader::Check(CheckpointDisk& disk, const std::string& folder,
                                     const CheckpointId& id, uint64_t digest) {
  return OpenFolder(disk, folder, id, digest).status();
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::OpenFolder(
    CheckpointDisk& disk, const std::string& folder, const CheckpointId& id,
    std::optional<uint64_t> digest) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  const absl::StatusOr<std::string> text =
      ReadWholeFile(disk, folder, kManifestFile, kManifestBytesMax);
  if (!text.ok()) return Prefixed(absl::StrCat("checkpoint ", folder), text.status());
  STARLING_RETURN_IF_ERROR(CheckDigest(path, *text, digest));
  absl::StatusOr<CheckpointManifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) return Prefixed(path, manifest.status());
  if (manifest->id() != ToString(id)) {
    return absl::DataLossError(
        absl::StrCat(path, ": expected the id ", ToString(id), ", got ", manifest->id()));
  }
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(*std::move(manifest)));
  STARLING_RETURN_IF_ERROR(reader->OpenFiles(disk, folder, id));
  const absl::Status indexed = reader->Index();
  if (!indexed.ok()) return Prefixed(absl::StrCat("checkpoint ", folder), indexed);
  return reader;
}

absl::Status CheckpointReader::OpenFiles(CheckpointDisk& disk, const std::string& folder,
                                         const CheckpointId& id) {
  for (const CheckpointFile& named : manifest_.files()) {
    File file{.path = absl::StrCat(folder, "/", named.name())};
    auto opened = disk.Open(folder, named.name());
    if (absl::IsNotFound(opened.status())) return absl::DataLossError(opened.status().message());
    STARLING_RETURN_IF_ERROR(opened.status());
    file.file = *std::move(opened);
    if (file.file->bytes() != named.bytes()) {
      return absl::DataLossError(absl::StrCat(file.path, ": expected ", named.bytes(),
                                              " bytes, got ", file.file->bytes()));
    }
    auto blocks = ReadShardFileHeader(*file.file, id, manifest_.step());
    if (!blocks.ok()) return Prefixed(file.path, blocks.status());
    file.blocks = *std::move(blocks);
    files_.push_back(std::move(file));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Index() {
  STARLING_ASSIGN_OR_RETURN(const auto elements, ElementsOf(manifest_.job().spec()));
  for (const File& file : files_) {
    for (const StoredBlock& block : file.blocks) {
      const auto it = elements.find(block.name.parameter);
      const uint64_t count = it == elements.end() ? 0 : it->second;
      if (block.elements > count || block.name.begin > count - block.elements) {
        return absl::DataLossError(absl::StrCat(file.path, ": entry ", ToString(block.name),
                                                " has ", block.elements, " elements of a parameter",
                                                " that has ", count, " in the model"));
      }
      index_[{block.name.parameter, block.name.part}].push_back({&file, &block});
    }
  }
  for (auto& [part, places] : index_) STARLING_RETURN_IF_ERROR(SortWithoutOverlaps(&places));
  for (const auto& [parameter, count] : elements) {
    uint64_t found = 0;
    for (const Place& place : index_[{parameter, BlockPart::kValue}])
      found += place.block->elements;
    if (found != count) {
      return absl::DataLossError(absl::StrCat("parameter ", parameter, ": expected ", count,
                                              " values in its files, got ", found));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::SortWithoutOverlaps(std::vector<Place>* places) {
  std::sort(places->begin(), places->end(), [](const Place& a, const Place& b) {
    return a.block->name.begin < b.block->name.begin;
  });
  uint64_t end = 0;
  for (const Place& place : *places) {
    if (place.block->name.begin < end) {
      return absl::DataLossError(absl::StrCat(place.file->path, ": entry ",
                                              ToString(place.block->name),
                                              ": another entry has its elements, too"));
    }
    end = place.block->name.begin + place.block->elements;
  }
  return absl::OkStatus();
}

CheckpointReader::Place CheckpointReader::Find(absl::string_view parameter, uint64_t element,
                                               BlockPart part) const {
  const auto it = index_.find({std::string(parameter), part});
  if (it == index_.end()) return {};
  const auto after = std::upper_bound(
      it->second.begin(), it->second.end(), element,
      [](uint64_t wanted, const Place& place) { return wanted < place.block->name.begin; });
  if (after == it->second.begin()) return {};
  const Place place = *std::prev(after);
  return element - place.block->name.begin < place.block->elements ? place : Place();
}

absl::Status CheckpointReader::Read(absl::string_view parameter, uint64_t begin, BlockPart part,
                                    absl::Span<float> out) const {
  std::vector<float> whole;  // of a block of which a part is asked for
  while (!out.empty()) {
    const auto [file, block] = Find(parameter, begin, part);
    if (block == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("checkpoint ", manifest_.id(), " has no entry for ",
                       ToString(BlockName{std::string(parameter), begin, part})));
    }
    const uint64_t skip = begin - block->name.begin;
    const uint64_t take = std::min<uint64_t>(out.size(), block->elements - skip);
    const bool all = take == block->elements;
    if (!all) whole.resize(block->elements);
    const absl::Span<float> to = all ? out.subspan(0, take) : absl::MakeSpan(whole);
    const absl::Span<uint8_t> bytes(reinterpret_cast<uint8_t*>(to.data()),
                                    to.size() * sizeof(float));
    STARLING_RETURN_IF_ERROR(file->file->ReadAt(block->offset, bytes));
    if (!DefenceMasked(Defence::kRestoreDigest))
      STARLING_RETURN_IF_ERROR(Prefixed(file->path, CheckBlock(*block, bytes)));
    if (!all) std::copy_n(whole.begin() + skip, take, out.begin());
    out.remove_prefix(take);
    begin += take;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::VerifyAll(absl::FunctionRef<bool(uint64_t)> progress) const {
  uint64_t before = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    STARLING_RETURN_IF_ERROR(Prefixed(
        files_[i].path,
        VerifyShardFile(*files_[i].file, files_[i].blocks, manifest_.files(static_cast<int>(i)),
                        [&](uint64_t read) { return progress(before + read); })));
    before += files_[i].file->bytes();
  }
  return absl::OkStatus();
}

}  // namespace starling
