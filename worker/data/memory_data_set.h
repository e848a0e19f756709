// Samples kept in memory in the file's format (MNIST: 47 MB), and gathered and normalised from
// there.
#ifndef STARLING_WORKER_DATA_MEMORY_DATA_SET_H_
#define STARLING_WORKER_DATA_MEMORY_DATA_SET_H_

#include <memory>
#include <string>
#include <vector>

#include "worker/data/data_set.h"
#include "worker/data/pixels.h"

namespace starling {

// Immutable; safe from any number of threads.
class MemoryDataSet : public DataSet {
 public:
  // At least one sample. Errors about labels name `file`.
  static absl::StatusOr<std::shared_ptr<const DataSet>> Make(Samples samples,
                                                             const std::string& file,
                                                             const Normalize& normalize,
                                                             const DataSetOptions& options);

  absl::Status Gather(absl::Span<const int64_t> ids, const AugmentDraw* draw, void* inputs,
                      void* labels) const override;
  uint64_t index_digest() const override;
  absl::Span<const std::string> class_names() const override { return samples_.class_names; }
  std::map<int32_t, int64_t> FirstOfLabels() const override;
  std::string PlaceOf(int64_t id) const override;

 private:
  MemoryDataSet(Samples samples, std::string file)
      : samples_(std::move(samples)), file_(std::move(file)) {}
  absl::Status CheckProbabilities() const;
  template <typename T>
  void GatherRows(const T* values, absl::Span<const int64_t> ids, const AugmentDraw* draw,
                  float* inputs) const;

  const Samples samples_;
  const std::string file_;
  PixelScale scale_;
  Augmenter augmenter_;
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_MEMORY_DATA_SET_H_
