// Creates data files for tests.
#ifndef STARLING_WORKER_DATA_TESTING_FILES_H_
#define STARLING_WORKER_DATA_TESTING_FILES_H_

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace starling::data_testing {

inline std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path;
}

// The same as a new file, which avoids the flush that the system does for an overwritten one: for
// tests that write many.
inline std::string WriteNewFile(const std::string& name, const std::string& bytes) {
  std::remove((testing::TempDir() + "/" + name).c_str());
  return WriteFile(name, bytes);
}

// `bytes` as one gzip member.
inline std::string Gzip(const std::string& bytes) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// An IDX file: the magic of unsigned bytes, the sizes, the bytes.
inline std::string Idx(const std::vector<uint32_t>& dims, const std::string& bytes) {
  std::string out = {0, 0, 8, static_cast<char>(dims.size())};
  for (uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(dim >> shift));
  }
  return out + bytes;
}

// Byte e of image i is 10*i + e (mod 256); label i is i % 3.
inline std::string Images(int n, int rows, int columns) {
  std::string bytes;
  for (int i = 0; i < n; ++i) {
    for (int e = 0; e < rows * columns; ++e) bytes.push_back(static_cast<char>(10 * i + e));
  }
  return Idx(
      {static_cast<uint32_t>(n), static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)},
      bytes);
}

inline std::string Labels(int n) {
  std::string bytes;
  for (int i = 0; i < n; ++i) bytes.push_back(static_cast<char>(i % 3));
  return Idx({static_cast<uint32_t>(n)}, bytes);
}

inline DataSource IdxSource(const std::string& images, const std::string& labels) {
  DataSource source;
  source.mutable_idx()->set_images(images);
  source.mutable_idx()->set_labels(labels);
  return source;
}

inline DataSource CsvSource(const std::string& path) {
  DataSource source;
  source.mutable_csv()->set_path(path);
  return source;
}

inline DataSource TextSource(const std::string& path, uint32_t context, uint32_t stride = 0,
                             double begin = 0, double end = 0) {
  DataSource source;
  auto* text = source.mutable_text();
  text->set_path(path);
  text->set_context(context);
  text->set_stride(stride);
  text->set_begin(begin);
  text->set_end(end);
  return source;
}

inline DataSource TokenSource(const std::string& path, uint32_t context, uint32_t vocabulary,
                              uint32_t stride = 0, double begin = 0, double end = 0) {
  DataSource source;
  auto* tokens = source.mutable_tokens();
  tokens->set_path(path);
  tokens->set_context(context);
  tokens->set_vocabulary(vocabulary);
  tokens->set_stride(stride);
  tokens->set_begin(begin);
  tokens->set_end(end);
  return source;
}

// The values as little-endian numbers of type T, contiguous.
template <typename T>
std::string Packed(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// llm.c's header, 256 int32.
inline std::string TokenHeader(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return Packed(header);
}

inline DataSource CounterSource(int64_t samples) {
  DataSource source;
  source.mutable_counter()->set_samples(samples);
  return source;
}

}  // namespace starling::data_testing

#endif  // STARLING_WORKER_DATA_TESTING_FILES_H_
