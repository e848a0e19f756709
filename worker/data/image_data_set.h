// JPEG images in WebDataset tar files, read and decoded on demand.
#ifndef STARLING_WORKER_DATA_IMAGE_DATA_SET_H_
#define STARLING_WORKER_DATA_IMAGE_DATA_SET_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/sync/mutex.h"
#include "worker/data/data_set.h"
#include "worker/data/image_index.h"
#include "worker/data/jpeg.h"
#include "worker/data/pixels.h"

namespace starling {

// A sample is [3 or 1, height, width]. Each call to Gather decodes on its caller's thread, with a
// decoder of its own.
//
// Corrupt images. An image whose header cannot be read is left out of the index. One that proves
// damaged when it is decoded is replaced by the next sample, with its label, that can be decoded;
// this depends on the files alone, so every worker makes the same batch, and an epoch has as many
// samples as before. Both kinds are counted; if there are more than the source's corrupt_max, Open
// or Gather fails and names the first ones.
class ImageDataSet : public DataSet {
 public:
  static absl::StatusOr<std::shared_ptr<const DataSet>> Open(const DataSource::WebDataset& source,
                                                             const Normalize& normalize,
                                                             const DataSetOptions& options);

  absl::Status Gather(absl::Span<const int64_t> ids, const AugmentDraw* draw, void* inputs,
                      void* labels) const override;
  absl::Status Probe(uint64_t bytes_max) const override;
  CorruptSamples corrupt() const override;
  std::map<int32_t, int64_t> FirstOfLabels() const override;
  std::string PlaceOf(int64_t id) const override;
  uint64_t index_digest() const override;
  absl::Span<const std::string> class_names() const override { return index_.class_names; }

  // For benches: reads and decodes sample `id` as Gather does, without the steps after that.
  absl::Status ReadAndDecode(int64_t id) const;

 private:
  // Decoding state, lent to one call at a time.
  struct Scratch {
    JpegDecoder decoder;
    std::vector<uint8_t> file;
    JpegPixels pixels;
    std::vector<uint8_t> resized;
  };
  // The part of a decoded image that becomes a sample.
  struct Window {
    const uint8_t* first = nullptr;
    int64_t row_stride = 0;
  };

  ImageDataSet(DataSource::WebDataset source, ImageIndex index, DataWarning warn)
      : source_(std::move(source)), index_(std::move(index)), warn_(std::move(warn)) {}
  absl::Status CheckSizes();
  std::unique_ptr<Scratch> Borrow() const;
  void GiveBack(std::unique_ptr<Scratch> scratch) const;
  absl::Status Decode(const ImageEntry& entry, Scratch* scratch) const;
  // Decodes sample `id` or its replacement, and returns the entry of the one decoded.
  absl::StatusOr<const ImageEntry*> DecodeGood(int64_t id, Scratch* scratch) const;
  Window Fit(Scratch* scratch) const;
  absl::Status NoteCorrupt(int64_t id, const std::string& why) const;
  absl::Status TooManyCorrupt(const CorruptSamples& corrupt) const;

  const DataSource::WebDataset source_;
  const ImageIndex index_;
  const DataWarning warn_;  // may be null
  int channels_ = 3;
  JpegSize size_;  // a sample's
  PixelScale scale_;
  Augmenter augmenter_;

  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> free_ ABSL_GUARDED_BY(mutex_);
  mutable std::set<int64_t> damaged_ ABSL_GUARDED_BY(mutex_);  // found while decoding
  mutable CorruptSamples corrupt_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_IMAGE_DATA_SET_H_
