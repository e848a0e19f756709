#include "worker/data/image_index.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "worker/data/byte_stream.h"
#include "worker/data/tar_reader.h"

namespace starling {
namespace {

constexpr uint64_t kImageBytesMax = 256 << 20;  // each decoding thread may hold one
constexpr uint64_t kLabelBytesMax = 4096;
constexpr uint64_t kClassesBytesMax = 16 << 20;
constexpr size_t kIndexThreadsMax = 8;

struct NameParts {
  std::string key;
  std::string extension;  // lower case; empty: none
};

NameParts SplitName(absl::string_view name) {
  while (absl::ConsumePrefix(&name, "./")) {
  }
  if (absl::StartsWith(name, "__")) return {};
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == absl::string_view::npos ? 0 : slash + 1);
  if (dot == absl::string_view::npos) return {};
  return {std::string(name.substr(0, dot)), absl::AsciiStrToLower(name.substr(dot + 1))};
}

absl::StatusOr<std::vector<std::string>> ReadClasses(const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> in, ByteStream::Open(path));
  std::string text(std::min<uint64_t>(in->bytes_max(), kClassesBytesMax + 1), '\0');
  STARLING_ASSIGN_OR_RETURN(
      const size_t got,
      in->Read(absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  text.resize(got);
  if (got > kClassesBytesMax)
    return absl::InvalidArgumentError(absl::StrCat(path, ": too large for class names"));
  std::vector<std::string> names;
  absl::flat_hash_map<std::string, int> seen;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::string name(absl::StripAsciiWhitespace(line));
    if (name.empty()) continue;
    if (!seen.emplace(name, 0).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": class \"", absl::CHexEscape(name), "\" is there twice"));
    }
    names.push_back(name);
  }
  if (names.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, ": no class names, one per line"));
  return names;
}

// What all shards share; read by their threads.
struct IndexPlan {
  IndexPlan(const DataSource::WebDataset& source, const DataLimits& limits,
            const std::vector<std::string>& class_names)
      : entries_max(limits.decoded_bytes_max / sizeof(ImageEntry)),
        kept_bytes_max(limits.kept_bytes_max),
        image(absl::AsciiStrToLower(source.image())),
        label(absl::AsciiStrToLower(source.label())),
        classes_path(source.classes()),
        names(class_names) {
    for (size_t i = 0; i < names.size(); ++i) classes[names[i]] = static_cast<int32_t>(i);
  }

  const uint64_t entries_max;     // for all shards
  const uint64_t kept_bytes_max;  // for all shards
  const std::string image;
  const std::string label;
  const std::string classes_path;
  const std::vector<std::string>& names;
  absl::flat_hash_map<std::string, int32_t> classes;
  mutable std::atomic<uint64_t> entries = 0;
  mutable std::atomic<uint64_t> bytes = 0;  // of the shards opened so far
};

struct ShardIndex {
  std::unique_ptr<RandomAccessFile> file;
  std::vector<ImageEntry> entries;
  CorruptSamples corrupt;
};

// Builds one shard's index, member by member.
class Indexer {
 public:
  Indexer(const IndexPlan& plan, uint32_t shard) : plan_(plan), shard_(shard) {}

  absl::StatusOr<ShardIndex> Read(const std::string& path) {
    STARLING_ASSIGN_OR_RETURN(out_.file, RandomAccessFile::Open(path));
    file_ = out_.file.get();
    if (plan_.bytes.fetch_add(file_->bytes()) + file_->bytes() <= plan_.kept_bytes_max) {
      STARLING_RETURN_IF_ERROR(out_.file->Keep());
    }
    BlockReader block(*file_);
    TarReader tar(*file_, &block);
    while (true) {
      STARLING_ASSIGN_OR_RETURN(const auto member, tar.Next());
      if (!member) break;
      STARLING_RETURN_IF_ERROR(Member(*member, block));
    }
    STARLING_RETURN_IF_ERROR(FinishSample());  // a shard's end ends the last sample
    return std::move(out_);
  }

 private:
  // What was found for one sample.
  struct Sample {
    std::string key;
    std::vector<std::string> extensions;
    bool image = false;
    bool label = false;
    std::string corrupt;  // not empty: why the image cannot be used
    ImageEntry entry;
  };

  absl::Status Member(const TarMember& member, BlockReader& block) {
    NameParts name = SplitName(member.name);
    if (name.extension.empty()) return absl::OkStatus();
    if (name.key != sample_.key) {
      STARLING_RETURN_IF_ERROR(FinishSample());
      sample_.key = std::move(name.key);
    }
    for (const std::string& other : sample_.extensions) {
      if (other == name.extension) return Error("two members .", name.extension);
    }
    sample_.extensions.push_back(name.extension);
    if (name.extension == plan_.image) STARLING_RETURN_IF_ERROR(Image(member, block));
    if (name.extension == plan_.label) STARLING_RETURN_IF_ERROR(Label(member, block));
    return absl::OkStatus();
  }

  absl::Status Image(const TarMember& member, BlockReader& block) {
    sample_.image = true;
    sample_.entry.shard = shard_;
    sample_.entry.offset = member.offset;
    sample_.entry.bytes = static_cast<uint32_t>(member.bytes);
    if (member.bytes > kImageBytesMax) {
      sample_.corrupt =
          absl::StrCat("expected at most ", kImageBytesMax, " bytes, got ", member.bytes);
      return absl::OkStatus();
    }
    const auto size = FindJpegSize(member.bytes, [&](uint64_t offset, size_t count) {
      return block.At(member.offset + offset, count);
    });
    if (size.ok()) {
      sample_.entry.size = *size;
    } else if (absl::IsDataLoss(size.status())) {
      sample_.corrupt = std::string(size.status().message());
    } else {
      return size.status();
    }
    return absl::OkStatus();
  }

  absl::Status Label(const TarMember& member, BlockReader& block) {
    sample_.label = true;
    if (member.bytes > kLabelBytesMax) {
      return Error("a label of ", member.bytes, " bytes; at most ", kLabelBytesMax, " are read");
    }
    STARLING_ASSIGN_OR_RETURN(const auto bytes, block.At(member.offset, member.bytes));
    const absl::string_view text = absl::StripAsciiWhitespace(
        absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    const auto named = plan_.classes.find(text);
    if (named != plan_.classes.end()) {
      sample_.entry.label = named->second;
      return absl::OkStatus();
    }
    const bool number = absl::SimpleAtoi(text, &sample_.entry.label) && sample_.entry.label >= 0;
    const std::string shown = absl::CHexEscape(text.substr(0, 40));
    if (plan_.classes.empty()) {
      if (number) return absl::OkStatus();
      return Error("expected a label that is a class number >= 0, got \"", shown,
                   "\"; for names, say which file lists them (classes)");
    }
    if (number && static_cast<size_t>(sample_.entry.label) < plan_.names.size())
      return absl::OkStatus();
    return Error("unknown class \"", shown, "\": ", plan_.classes_path, " lists ",
                 plan_.names.size(), ": ", absl::StrJoin(FirstClasses(), ", "),
                 plan_.names.size() > kClassesShown ? ", ..." : "");
  }

  absl::Status FinishSample() {
    Sample sample = std::exchange(sample_, Sample());
    if (!sample.image && !sample.label) return absl::OkStatus();  // of another kind
    if (!sample.image || !sample.label) {
      sample_.key = sample.key;
      return Error("it has no member .", sample.image ? plan_.label : plan_.image, "; it has ",
                   absl::StrJoin(sample.extensions, ", "),
                   " (members of one sample must lie next to each other)");
    }
    if (!sample.corrupt.empty()) {
      AddCorrupt(Name(sample.key), sample.corrupt, &out_.corrupt);
      return absl::OkStatus();
    }
    if (plan_.entries.fetch_add(1) >= plan_.entries_max) {
      return absl::ResourceExhaustedError(absl::StrCat(file_->path(), ": an index of more than ",
                                                       plan_.entries_max * sizeof(ImageEntry),
                                                       " bytes"));
    }
    out_.entries.push_back(sample.entry);
    return absl::OkStatus();
  }

  std::string Name(const std::string& key) const {
    return absl::StrCat(file_->path(), ": ", absl::CHexEscape(key), ".", plan_.image);
  }

  std::vector<std::string> FirstClasses() const {
    const auto& names = plan_.names;
    return {names.begin(), names.begin() + std::min(kClassesShown, names.size())};
  }

  template <typename... Args>
  absl::Status Error(const Args&... what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->path(), ": sample ", absl::CHexEscape(sample_.key), ": ", what...));
  }

  static constexpr size_t kClassesShown = 10;
  const IndexPlan& plan_;
  const uint32_t shard_;
  ShardIndex out_;
  const RandomAccessFile* file_ = nullptr;
  Sample sample_;
};

absl::StatusOr<ShardIndex> ReadShard(const IndexPlan& plan, uint32_t shard,
                                     const std::string& path) {
  try {
    return Indexer(plan, shard).Read(path);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(path, ": no memory for its index"));
  }
}

// The indexes of all shards, in order; those after the first unreadable one may be missing. Headers
// lie far apart, so a thread mostly waits for the disk.
std::vector<absl::StatusOr<ShardIndex>> ReadShards(const IndexPlan& plan,
                                                   const std::vector<std::string>& paths) {
  std::vector<absl::StatusOr<ShardIndex>> out(paths.size());
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto read = [&] {
    while (!failed) {
      const size_t shard = next.fetch_add(1);
      if (shard >= paths.size()) return;
      out[shard] = ReadShard(plan, static_cast<uint32_t>(shard), paths[shard]);
      if (!out[shard].ok()) failed = true;
    }
  };
  std::vector<std::thread> threads(std::min(kIndexThreadsMax, paths.size()) - 1);
  for (std::thread& thread : threads) thread = std::thread(read);
  read();
  for (std::thread& thread : threads) thread.join();
  return out;
}

absl::Status Append(ShardIndex shard, ImageIndex* out) {
  try {
    out->entries.insert(out->entries.end(), shard.entries.begin(), shard.entries.end());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(shard.file->path(), ": no memory for the index"));
  }
  out->shards.push_back(std::move(shard.file));
  out->corrupt.count += shard.corrupt.count;
  for (std::string& name : shard.corrupt.names) {
    if (out->corrupt.names.size() < kCorruptNamesMax) out->corrupt.names.push_back(std::move(name));
  }
  return absl::OkStatus();
}

}  // namespace

void AddCorrupt(const std::string& name, const std::string& why, CorruptSamples* out) {
  ++out->count;
  if (out->names.size() < kCorruptNamesMax) out->names.push_back(absl::StrCat(name, ": ", why));
}

std::string ImageIndex::NameOf(const ImageEntry& entry,
                               const DataSource::WebDataset& source) const {
  const RandomAccessFile& shard = *shards[entry.shard];
  BlockReader block(shard);
  TarReader tar(shard, &block);
  while (true) {
    const auto member = tar.Next();
    if (!member.ok() || !*member) break;
    if ((*member)->offset == entry.offset) {
      return absl::StrCat(shard.path(), ": ", absl::CHexEscape((*member)->name));
    }
  }
  return absl::StrCat(shard.path(), ": the .", source.image(), " at byte ", entry.offset);
}

absl::StatusOr<ImageIndex> ReadImageIndex(const DataSource::WebDataset& source,
                                          const DataLimits& limits) {
  if (source.shards().empty())
    return absl::InvalidArgumentError("webdataset: expected at least one shard");
  ImageIndex index;
  if (!source.classes().empty()) {
    STARLING_ASSIGN_OR_RETURN(index.class_names, ReadClasses(source.classes()));
  }
  const IndexPlan plan(source, limits, index.class_names);
  const std::vector<std::string> paths(source.shards().begin(), source.shards().end());
  for (absl::StatusOr<ShardIndex>& shard : ReadShards(plan, paths)) {
    STARLING_RETURN_IF_ERROR(shard.status());
    STARLING_RETURN_IF_ERROR(Append(*std::move(shard), &index));
  }
  if (!index.entries.empty()) return index;
  return absl::InvalidArgumentError(absl::StrCat(
      source.shards(0), ": no samples with members .", source.image(), " and .", source.label(),
      index.corrupt.names.empty()
          ? ""
          : absl::StrCat("; first corrupt image: ", index.corrupt.names[0])));
}

}  // namespace starling
