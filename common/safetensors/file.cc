#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/safetensors/safetensors.h"

namespace starling::safetensors {

absl::StatusOr<Header> ReadHeader(
    uint64_t file_bytes, absl::FunctionRef<absl::Status(uint64_t, absl::Span<uint8_t>)> read) {
  if (file_bytes < 8) return absl::InvalidArgumentError("expected at least 8 bytes: truncated");
  uint8_t length[8];
  STARLING_RETURN_IF_ERROR(read(0, absl::MakeSpan(length)));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("expected a header of at most ", kHeaderBytesMax,
                                                   " bytes, got ", header_bytes));
  }
  if (header_bytes > file_bytes - 8) {
    return absl::InvalidArgumentError(absl::StrCat("the header should take ", header_bytes,
                                                   " bytes, and the file ends after ",
                                                   file_bytes - 8));
  }
  std::string json(header_bytes, '\0');
  STARLING_RETURN_IF_ERROR(
      read(8, absl::MakeSpan(reinterpret_cast<uint8_t*>(json.data()), json.size())));
  return ParseHeader(json, file_bytes - 8 - header_bytes);
}

Reader::Reader(std::string path, OwnedFd fd, Header header)
    : path_(std::move(path)), fd_(std::move(fd)), header_(std::move(header)) {}

absl::StatusOr<Reader> Reader::Open(const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(RegularFile file, OpenRegularFile(path));
  absl::StatusOr<Header> header =
      ReadHeader(file.bytes, [&](uint64_t offset, absl::Span<uint8_t> out) {
        return ReadWithin(file.fd.get(), offset, out, path);
      });
  if (!header.ok()) {
    if (!absl::IsInvalidArgument(header.status())) return header.status();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a safetensors file: ", header.status().message()));
  }
  return Reader(path, std::move(file.fd), *std::move(header));
}

const TensorInfo* Reader::Find(absl::string_view name) const {
  for (const TensorInfo& tensor : header_.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Status Reader::Read(const TensorInfo& tensor, uint64_t offset,
                          absl::Span<uint8_t> out) const {
  const uint64_t bytes = tensor.end - tensor.begin;
  if (offset > bytes || out.size() > bytes - offset) {
    return absl::OutOfRangeError(absl::StrCat("tensor \"", tensor.name, "\" has ", bytes,
                                              " bytes: cannot read ", out.size(), " at ", offset));
  }
  return ReadWithin(fd_.get(), header_.data_begin + tensor.begin + offset, out, path_);
}

absl::StatusOr<std::vector<float>> Reader::ReadFloats(absl::string_view name) const {
  const TensorInfo* tensor = Find(name);
  if (tensor == nullptr)
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor \"", name, "\""));
  if (tensor->dtype != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": tensor \"", name, "\": expected F32, got ", DTypeName(tensor->dtype)));
  }
  std::vector<float> values((tensor->end - tensor->begin) / sizeof(float));
  STARLING_RETURN_IF_ERROR(Read(
      *tensor, 0,
      absl::MakeSpan(reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(float))));
  return values;
}

absl::StatusOr<Writer> Writer::Create(const std::string& path, std::vector<TensorInfo> tensors,
                                      std::map<std::string, std::string> metadata) {
  return Begin(path, FileReplacement::Begin(path), std::move(tensors), std::move(metadata));
}

absl::StatusOr<Writer> Writer::CreateIn(OwnedFd folder, const std::string& name,
                                        const std::string& shown, std::vector<TensorInfo> tensors,
                                        std::map<std::string, std::string> metadata) {
  return Begin(shown, FileReplacement::BeginIn(std::move(folder), name, shown), std::move(tensors),
               std::move(metadata));
}

absl::StatusOr<Writer> Writer::Begin(const std::string& path, absl::StatusOr<FileReplacement> file,
                                     std::vector<TensorInfo> tensors,
                                     std::map<std::string, std::string> metadata) {
  STARLING_RETURN_IF_ERROR(file.status());
  Writer writer(path, *std::move(file));
  STARLING_ASSIGN_OR_RETURN(const std::string header, EncodeHeader(&tensors, std::move(metadata)));
  writer.header_bytes_ = header.size();
  writer.data_bytes_ = tensors.empty() ? 0 : tensors.back().end;
  STARLING_RETURN_IF_ERROR(writer.file_.Write(header));
  return writer;
}

absl::Status Writer::Append(absl::Span<const uint8_t> bytes) {
  if (bytes.size() > data_bytes_ - written_) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": the tensors have ", data_bytes_,
                                              " bytes, got at least ",
                                              bytes.size() - (data_bytes_ - written_), " more"));
  }
  STARLING_RETURN_IF_ERROR(
      file_.Write({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  written_ += bytes.size();
  return absl::OkStatus();
}

absl::Status Writer::AppendFloats(absl::Span<const float> values) {
  return Append(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values.data()),
                                    values.size() * sizeof(float)));
}

absl::Status Writer::Finish() {
  if (written_ != data_bytes_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": the tensors have ", data_bytes_, " bytes, got ", written_));
  }
  return file_.Commit();
}

}  // namespace starling::safetensors
