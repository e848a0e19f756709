#include "worker/data/image_index.h"

#include <new>
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
      const size_t got, in->Read(absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  text.resize(got);
  if (got > kClassesBytesMax) return absl::InvalidArgumentError(absl::StrCat(path, ": too large for class names"));
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
  if (names.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no class names, one per line"));
  return names;
}

// Builds the index, one member after the other.
class Indexer {
 public:
  Indexer(const DataSource::WebDataset& source, const DataLimits& limits, ImageIndex* out)
      : limits_(limits), image_(absl::AsciiStrToLower(source.image())),
        label_(absl::AsciiStrToLower(source.label())), classes_path_(source.classes()), out_(*out) {
    for (size_t i = 0; i < out_.class_names.size(); ++i)
      classes_[out_.class_names[i]] = static_cast<int32_t>(i);
  }

  absl::Status Shard(const std::string& path) {
    STARLING_ASSIGN_OR_RETURN(auto file, RandomAccessFile::Open(path));
    shard_ = static_cast<uint32_t>(out_.shards.size());
    file_ = file.get();
    out_.shards.push_back(std::move(file));
    BlockReader block(*file_);
    TarReader tar(*file_, &block);
    while (true) {
      STARLING_ASSIGN_OR_RETURN(const auto member, tar.Next());
      if (!member) break;
      STARLING_RETURN_IF_ERROR(Member(*member, block));
    }
    return FinishSample();  // a shard's end ends the last sample
  }

 private:
  // What was found of one sample.
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
    if (name.extension == image_) STARLING_RETURN_IF_ERROR(Image(member, block));
    if (name.extension == label_) STARLING_RETURN_IF_ERROR(Label(member, block));
    return absl::OkStatus();
  }

  absl::Status Image(const TarMember& member, BlockReader& block) {
    sample_.image = true;
    sample_.entry.shard = shard_;
    sample_.entry.offset = member.offset;
    sample_.entry.bytes = static_cast<uint32_t>(member.bytes);
    if (member.bytes > kImageBytesMax) {
      sample_.corrupt = absl::StrCat("expected at most ", kImageBytesMax, " bytes, got ", member.bytes);
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
    const auto named = classes_.find(text);
    if (named != classes_.end()) {
      sample_.entry.label = named->second;
      return absl::OkStatus();
    }
    const bool number = absl::SimpleAtoi(text, &sample_.entry.label) && sample_.entry.label >= 0;
    const std::string shown = absl::CHexEscape(text.substr(0, 40));
    if (classes_.empty()) {
      if (number) return absl::OkStatus();
      return Error("expected a label that is a class number >= 0, got \"", shown,
                   "\"; for names, say which file lists them (classes)");
    }
    if (number && static_cast<size_t>(sample_.entry.label) < classes_.size()) return absl::OkStatus();
    return Error("unknown class \"", shown, "\": ", classes_path_, " lists ", classes_.size(), ": ",
                 absl::StrJoin(FirstClasses(), ", "), classes_.size() > kClassesShown ? ", ..." : "");
  }

  absl::Status FinishSample() {
    Sample sample = std::exchange(sample_, Sample());
    if (!sample.image && !sample.label) return absl::OkStatus();  // of another purpose
    if (!sample.image || !sample.label) {
      sample_.key = sample.key;
      return Error("it has no member .", sample.image ? label_ : image_, "; it has ",
                   absl::StrJoin(sample.extensions, ", "),
                   " (members of one sample must lie next to each other)");
    }
    if (!sample.corrupt.empty()) {
      AddCorrupt(Name(sample.key), sample.corrupt, &out_.corrupt);
      return absl::OkStatus();
    }
    if ((out_.entries.size() + 1) * sizeof(ImageEntry) > limits_.decoded_bytes_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          file_->path(), ": an index of more than ", limits_.decoded_bytes_max, " bytes"));
    }
    out_.entries.push_back(sample.entry);
    return absl::OkStatus();
  }

  std::string Name(const std::string& key) const {
    return absl::StrCat(file_->path(), ": ", absl::CHexEscape(key), ".", image_);
  }

  std::vector<std::string> FirstClasses() const {
    const auto& names = out_.class_names;
    return {names.begin(), names.begin() + std::min(kClassesShown, names.size())};
  }

  template <typename... Args>
  absl::Status Error(const Args&... what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->path(), ": sample ", absl::CHexEscape(sample_.key), ": ", what...));
  }

  static constexpr size_t kClassesShown = 10;
  const DataLimits& limits_;
  const std::string image_;
  const std::string label_;
  const std::string classes_path_;
  ImageIndex& out_;
  absl::flat_hash_map<std::string, int32_t> classes_;
  const RandomAccessFile* file_ = nullptr;
  uint32_t shard_ = 0;
  Sample sample_;
};

}  // namespace

void AddCorrupt(const std::string& name, const std::string& why, CorruptSamples* out) {
  ++out->count;
  if (out->names.size() < kCorruptNamesMax) out->names.push_back(absl::StrCat(name, ": ", why));
}

std::string ImageIndex::NameOf(const ImageEntry& entry, const DataSource::WebDataset& source) const {
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
  if (source.shards().empty()) return absl::InvalidArgumentError("webdataset: expected at least one shard");
  ImageIndex index;
  if (!source.classes().empty()) {
    STARLING_ASSIGN_OR_RETURN(index.class_names, ReadClasses(source.classes()));
  }
  try {
    Indexer indexer(source, limits, &index);
    for (const std::string& shard : source.shards()) STARLING_RETURN_IF_ERROR(indexer.Shard(shard));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(source.shards(0), ": no memory for its index"));
  }
  if (!index.entries.empty()) return index;
  return absl::InvalidArgumentError(absl::StrCat(
      source.shards(0), ": no samples with members .", source.image(), " and .", source.label(),
      index.corrupt.names.empty() ? "" : absl::StrCat("; first corrupt image: ", index.corrupt.names[0])));
}

}  // namespace starling
