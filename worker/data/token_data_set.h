// Text as bytes, and token files: a sample is a window, its labels the window shifted by one.
#ifndef STARLING_WORKER_DATA_TOKEN_DATA_SET_H_
#define STARLING_WORKER_DATA_TOKEN_DATA_SET_H_

#include <memory>
#include <string>

#include "worker/data/data_set.h"
#include "worker/data/random_access_file.h"

namespace starling {

// Windows of `context` tokens, `stride` apart, in the part of a file between the fractions `begin`
// and `end` of its tokens (rounded down). Sample i starts at token begin + i * stride. The file
// stays on the disk; tokens are checked against the vocabulary as they are read.
class TokenDataSet : public DataSet {
 public:
  // Plain text, one token per byte, 256 of them. Compressed text is refused.
  static absl::StatusOr<std::shared_ptr<const DataSet>> OpenText(const DataSource::Text& text,
                                                                 const DataSetOptions& options);

  // Tokens of 16 or 32 bits, little-endian. With llm.c's header, 256 int32 that start with
  // 20240520, 1, count (then u16) or 20240801, 7, count (then u32); without one, nanoGPT's u16.
  // Scans the first options.limits.token_scan_bytes_max of the part for tokens outside the
  // vocabulary.
  static absl::StatusOr<std::shared_ptr<const DataSet>> OpenTokens(const DataSource::Tokens& tokens,
                                                                   const DataSetOptions& options);

  absl::Status Gather(absl::Span<const int64_t> ids, const AugmentDraw* draw, void* inputs,
                      void* labels) const override;
  uint64_t index_digest() const override;

 private:
  // Where the tokens are in the file.
  struct Layout {
    uint64_t header_bytes = 0;
    int width = 1;  // bytes per token: 1, 2 or 4
    int64_t tokens = 0;
    int64_t vocabulary = 0;
  };
  struct Part {
    uint32_t context;
    uint32_t stride;
    double begin;
    double end;
  };

  TokenDataSet(std::unique_ptr<RandomAccessFile> file, const Layout& layout)
      : file_(std::move(file)), layout_(layout) {}
  static absl::StatusOr<Layout> LayoutOf(const RandomAccessFile& file, uint32_t vocabulary);
  static absl::StatusOr<std::shared_ptr<TokenDataSet>> Make(std::unique_ptr<RandomAccessFile> file,
                                                            const Layout& layout, const Part& part,
                                                            const DataSetOptions& options);
  absl::Status Scan(int64_t end, uint64_t bytes_max) const;
  // Reads `count` tokens starting at token `begin`; `scratch` holds count * width bytes.
  absl::Status Read(int64_t begin, int64_t count, uint8_t* scratch, int32_t* out) const;

  const std::unique_ptr<const RandomAccessFile> file_;
  const Layout layout_;
  int64_t begin_ = 0;  // the part's first token
  int64_t context_ = 0;
  int64_t stride_ = 0;
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_TOKEN_DATA_SET_H_
