#include "tools/cli/init_file.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/safetensors/safetensors.h"
#include "xxhash.h"

namespace starling::cli {
namespace {

absl::StatusOr<uint64_t> Digest(const safetensors::Reader& file,
                                const safetensors::TensorInfo& tensor) {
  constexpr uint64_t kChunkBytes = 1 << 20;
  std::vector<uint8_t> chunk(kChunkBytes);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const uint64_t bytes = tensor.end - tensor.begin;
  for (uint64_t at = 0; at < bytes; at += kChunkBytes) {
    const absl::Span<uint8_t> part(chunk.data(), std::min(kChunkBytes, bytes - at));
    STARLING_RETURN_IF_ERROR(file.Read(tensor, at, part));
    XXH3_64bits_update(state.get(), part.data(), part.size());
  }
  return XXH3_64bits_digest(state.get());
}

absl::Status Read(InitFile* init) {
  STARLING_ASSIGN_OR_RETURN(const safetensors::Reader file,
                            safetensors::Reader::Open(init->path()));
  for (const safetensors::TensorInfo& tensor : file.header().tensors) {
    InitFile::Tensor& out = *init->add_tensors();
    out.set_name(tensor.name);
    out.set_type(safetensors::DTypeName(tensor.dtype));
    for (const uint64_t dim : tensor.shape) out.add_shape(static_cast<int64_t>(dim));
    out.set_offset(file.header().data_begin + tensor.begin);
    STARLING_ASSIGN_OR_RETURN(const uint64_t digest, Digest(file, tensor));
    out.set_digest(digest);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadInitFile(JobSpec* spec) {
  if (!spec->model_source().has_init()) return absl::OkStatus();
  InitFile* const init = spec->mutable_model_source()->mutable_init();
  const absl::Status status = Read(init);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("model.init: ", status.message()));
}

}  // namespace starling::cli
