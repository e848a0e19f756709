// copy IN OUT: reads IN with our reader and writes OUT with our writer, 1,000 bytes at a time, so
// that the real safetensors package can judge both. Keeps metadata and tensors, in the order of the
// data.
#include <cstdio>
#include <vector>

#include "common/safetensors/safetensors.h"

namespace starling::safetensors {
namespace {

absl::Status Copy(const char* in, const char* out) {
  absl::StatusOr<Reader> reader = Reader::Open(in);
  if (!reader.ok()) return reader.status();
  absl::StatusOr<Writer> writer =
      Writer::Create(out, reader->header().tensors, reader->header().metadata);
  if (!writer.ok()) return writer.status();
  for (const TensorInfo& tensor : reader->header().tensors) {
    const uint64_t bytes = tensor.end - tensor.begin;
    for (uint64_t offset = 0; offset < bytes;) {
      std::vector<uint8_t> piece(std::min<uint64_t>(1000, bytes - offset));
      if (absl::Status status = reader->Read(tensor, offset, absl::MakeSpan(piece)); !status.ok())
        return status;
      if (absl::Status status = writer->Append(piece); !status.ok()) return status;
      offset += piece.size();
    }
  }
  return writer->Finish();
}

}  // namespace
}  // namespace starling::safetensors

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: copy IN OUT\n");
    return 2;
  }
  const absl::Status status = starling::safetensors::Copy(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "copy: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
