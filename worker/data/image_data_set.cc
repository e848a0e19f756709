#include "worker/data/image_data_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/data/resize.h"
#include "xxhash.h"

namespace starling {
namespace {

constexpr size_t kScratchBytesKept = 32 << 20;

std::string SizeText(JpegSize size) { return absl::StrCat(size.width, " x ", size.height); }

absl::StatusOr<int64_t> Classes(const ImageIndex& index, int64_t most,
                                const DataSource::WebDataset& source) {
  const auto greatest =
      std::max_element(index.entries.begin(), index.entries.end(),
                       [](const ImageEntry& a, const ImageEntry& b) { return a.label < b.label; });
  const int64_t classes = std::max<int64_t>(greatest->label + int64_t{1}, index.class_names.size());
  if (most == 0 || greatest->label < most) return classes;
  return absl::InvalidArgumentError(absl::StrCat(index.NameOf(*greatest, source), ": it has label ",
                                                 greatest->label, ", expected less than ", most,
                                                 ", the model's number of classes"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DataSet>> ImageDataSet::Open(
    const DataSource::WebDataset& source, const Normalize& normalize,
    const DataSetOptions& options) {
  STARLING_ASSIGN_OR_RETURN(ImageIndex index, ReadImageIndex(source, options.limits));
  SampleFormat format;
  STARLING_ASSIGN_OR_RETURN(format.classes, Classes(index, options.classes, source));
  std::shared_ptr<ImageDataSet> out(new ImageDataSet(source, std::move(index), options.warn));
  const ImageIndex& kept = out->index_;
  if (kept.corrupt.count > source.corrupt_max()) return out->TooManyCorrupt(kept.corrupt);
  out->channels_ = source.gray() ? 1 : 3;
  out->size_ = {static_cast<int>(source.height()), static_cast<int>(source.width())};
  if (source.height() == 0) out->size_ = kept.entries[0].size;
  STARLING_RETURN_IF_ERROR(out->CheckSizes());
  const std::vector<int64_t> image = {out->channels_, out->size_.height, out->size_.width};
  STARLING_ASSIGN_OR_RETURN(out->scale_, PixelScale::Make(normalize, 1.0 / 255.0, image));
  STARLING_ASSIGN_OR_RETURN(out->augmenter_, Augmenter::Make(options.augment, image));
  STARLING_ASSIGN_OR_RETURN(format.shape, Reshaped(image, options.sample_shape));
  {
    MutexLock lock(&out->mutex_);
    out->corrupt_ = kept.corrupt;
  }
  out->SetFormat(static_cast<int64_t>(kept.entries.size()), std::move(format));
  return out;
}

std::map<int32_t, int64_t> ImageDataSet::FirstOfLabels() const {
  std::map<int32_t, int64_t> first;
  for (int64_t id = 0; id < samples(); ++id) first.try_emplace(index_.entries[id].label, id);
  return first;
}

std::string ImageDataSet::PlaceOf(int64_t id) const {
  return index_.NameOf(index_.entries[id], source_);
}

absl::Status ImageDataSet::CheckSizes() {
  if (source_.fit() == DataSource::WebDataset::RESIZE) return absl::OkStatus();
  const bool crop = source_.fit() == DataSource::WebDataset::CENTER_CROP;
  for (const ImageEntry& entry : index_.entries) {
    const bool large = entry.size.height >= size_.height && entry.size.width >= size_.width;
    if (crop ? large : entry.size == size_) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(index_.NameOf(entry, source_), ": an image of ", SizeText(entry.size),
                     " pixels, expected ", crop ? "at least " : "", SizeText(size_),
                     crop ? ": with fit resize it is scaled up"
                          : ": say what to do with others by size and fit"));
  }
  return absl::OkStatus();
}

std::unique_ptr<ImageDataSet::Scratch> ImageDataSet::Borrow() const {
  {
    MutexLock lock(&mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void ImageDataSet::GiveBack(std::unique_ptr<Scratch> scratch) const {
  const size_t bytes =
      scratch->file.capacity() + scratch->pixels.bytes.capacity() + scratch->resized.capacity();
  if (bytes > kScratchBytesKept) return;  // the memory of an unusually large image is freed
  MutexLock lock(&mutex_);
  free_.push_back(std::move(scratch));
}

absl::Status ImageDataSet::Decode(const ImageEntry& entry, Scratch* scratch) const {
  const RandomAccessFile& shard = *index_.shards[entry.shard];
  absl::Span<const uint8_t> file;
  if (const auto kept = shard.Kept(entry.offset, entry.bytes)) {
    file = *kept;
  } else {
    scratch->file.resize(entry.bytes);
    STARLING_RETURN_IF_ERROR(shard.ReadAt(entry.offset, absl::MakeSpan(scratch->file)));
    file = scratch->file;
  }
  JpegSize at_least = entry.size;
  if (source_.fit() == DataSource::WebDataset::RESIZE) at_least = CoverSize(entry.size, size_);
  return scratch->decoder.Decode(file, entry.size, channels_, at_least, &scratch->pixels);
}

absl::StatusOr<const ImageEntry*> ImageDataSet::DecodeGood(int64_t id, Scratch* scratch) const {
  for (int64_t tried = 0; tried < samples(); ++tried) {
    const int64_t next = (id + tried) % samples();
    const ImageEntry& entry = index_.entries[next];
    const absl::Status status = Decode(entry, scratch);
    if (status.ok()) return &entry;
    if (!absl::IsDataLoss(status)) return status;
    STARLING_RETURN_IF_ERROR(NoteCorrupt(next, std::string(status.message())));
  }
  return absl::DataLossError(absl::StrCat(source_.shards(0), ": no image can be decoded"));
}

ImageDataSet::Window ImageDataSet::Fit(Scratch* scratch) const {
  const JpegPixels& pixels = scratch->pixels;
  const JpegSize scaled =
      source_.fit() == DataSource::WebDataset::RESIZE ? CoverSize(pixels.size, size_) : pixels.size;
  if (scaled != pixels.size) {
    ResizeCenter(pixels, scaled, size_, &scratch->resized);
    return {scratch->resized.data(), size_.width * channels_};
  }
  const int64_t row = pixels.size.width * channels_;
  const int64_t top = (pixels.size.height - size_.height) / 2;
  const int64_t left = (pixels.size.width - size_.width) / 2;
  return {pixels.bytes.data() + top * row + left * channels_, row};
}

uint64_t ImageDataSet::index_digest() const {
  std::vector<uint64_t> index;
  index.reserve(index_.shards.size() + 4 * index_.entries.size());
  for (const auto& shard : index_.shards) index.push_back(shard->bytes());
  for (const ImageEntry& entry : index_.entries) {
    index.push_back(entry.offset);
    index.push_back(uint64_t{entry.shard} << 32 | entry.bytes);
    index.push_back(static_cast<uint64_t>(entry.label));
    index.push_back(static_cast<uint64_t>(entry.size.height) << 32 |
                    static_cast<uint32_t>(entry.size.width));
  }
  return XXH3_64bits(index.data(), index.size() * sizeof(index[0]));
}

absl::Status ImageDataSet::Gather(absl::Span<const int64_t> ids, const AugmentDraw* draw,
                                  void* inputs, void* labels) const {
  std::unique_ptr<Scratch> scratch = Borrow();
  auto* out = static_cast<float*>(inputs);
  PlaneLayout layout{size_.height, size_.width, channels_, 0};
  const int64_t plane = layout.height * layout.width;
  for (size_t i = 0; i < ids.size(); ++i) {
    STARLING_ASSIGN_OR_RETURN(const ImageEntry* entry, DecodeGood(ids[i], scratch.get()));
    const Window window = Fit(scratch.get());
    layout.row_stride = window.row_stride;
    const Placement placement = draw != nullptr ? augmenter_.Draw(*draw, ids[i]) : Placement();
    for (int c = 0; c < channels_; ++c, out += plane) {
      const int scale = scale_.scale.size() == 1 ? 0 : c;
      PlacePlane(window.first + c, layout, placement, scale_.scale[scale], scale_.shift[scale],
                 out);
    }
    static_cast<int32_t*>(labels)[i] = entry->label;
  }
  GiveBack(std::move(scratch));
  return absl::OkStatus();
}

absl::Status ImageDataSet::ReadAndDecode(int64_t id) const {
  std::unique_ptr<Scratch> scratch = Borrow();
  const absl::Status status = DecodeGood(id, scratch.get()).status();
  GiveBack(std::move(scratch));
  return status;
}

absl::Status ImageDataSet::Probe(uint64_t bytes_max) const {
  std::unique_ptr<Scratch> scratch = Borrow();
  uint64_t bytes = 0;
  for (int64_t id = 0; id < samples() && bytes < bytes_max; ++id) {
    const absl::Status status = Decode(index_.entries[id], scratch.get());
    if (absl::IsDataLoss(status)) {
      STARLING_RETURN_IF_ERROR(NoteCorrupt(id, std::string(status.message())));
    } else if (!status.ok()) {
      return status;
    }
    bytes += index_.entries[id].bytes;
  }
  GiveBack(std::move(scratch));
  return absl::OkStatus();
}

absl::Status ImageDataSet::NoteCorrupt(int64_t id, const std::string& why) const {
  {
    MutexLock lock(&mutex_);
    if (damaged_.contains(id)) {
      return corrupt_.count > source_.corrupt_max() ? TooManyCorrupt(corrupt_) : absl::OkStatus();
    }
  }
  const std::string name = index_.NameOf(index_.entries[id], source_);  // reads the tar file
  bool news = false;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    news = damaged_.insert(id).second;
    if (news) AddCorrupt(name, why, &corrupt_);
    if (corrupt_.count > source_.corrupt_max()) status = TooManyCorrupt(corrupt_);
  }
  if (news && warn_) warn_(absl::StrCat(name, ": corrupt image replaced by the next one: ", why));
  return status;
}

absl::Status ImageDataSet::TooManyCorrupt(const CorruptSamples& corrupt) const {
  return absl::DataLossError(
      absl::StrCat(corrupt.count, " corrupt images, more than the ", source_.corrupt_max(),
                   " that corruptMax allows: ", absl::StrJoin(corrupt.names, "; "),
                   corrupt.count > corrupt.names.size() ? "; ..." : ""));
}

CorruptSamples ImageDataSet::corrupt() const {
  MutexLock lock(&mutex_);
  return corrupt_;
}

}  // namespace starling
