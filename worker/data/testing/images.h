// Creates JPEG images and tar files for tests.
#ifndef STARLING_WORKER_DATA_TESTING_IMAGES_H_
#define STARLING_WORKER_DATA_TESTING_IMAGES_H_

#include <gtest/gtest.h>
#include <turbojpeg.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "proto/job.pb.h"

namespace starling::data_testing {

// A smooth image that differs with `seed`.
inline std::vector<uint8_t> Pixels(int height, int width, int seed) {
  std::vector<uint8_t> out;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      out.push_back(static_cast<uint8_t>(40 * seed + 3 * x));
      out.push_back(static_cast<uint8_t>(200 - 2 * y));
      out.push_back(static_cast<uint8_t>(10 * seed + x + y));
    }
  }
  return out;
}

inline std::string Jpeg(const std::vector<uint8_t>& rgb, int height, int width) {
  const tjhandle handle = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(handle, rgb.data(), width, 3 * width, height, TJPF_RGB, &bytes, &size,
                        TJSAMP_420, 92, 0),
            0);
  std::string out(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(handle);
  return out;
}

inline std::string Jpeg(int height, int width, int seed) {
  return Jpeg(Pixels(height, width, seed), height, width);
}

// As the library decodes it: rows of red, green, blue.
inline std::vector<uint8_t> Decoded(const std::string& jpeg, int height, int width) {
  const tjhandle handle = tjInitDecompress();
  std::vector<uint8_t> out(3 * height * width);
  EXPECT_EQ(tjDecompress2(handle, reinterpret_cast<const unsigned char*>(jpeg.data()), jpeg.size(),
                          out.data(), width, 3 * width, height, TJPF_RGB, 0),
            0);
  tjDestroy(handle);
  return out;
}

// The same image with an intact header and truncated data.
inline std::string DamagedBody(std::string jpeg) {
  const size_t scan = jpeg.find("\xff\xda");
  return jpeg.replace((scan + jpeg.size()) / 2, 2, "\xff\xd9");
}

inline std::string TarHeader(const std::string& name, uint64_t bytes, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, std::min<size_t>(name.size(), 100), name.substr(0, 100));
  char number[16];
  std::snprintf(number, sizeof(number), "%07o", 0644);
  header.replace(100, 7, number);
  std::snprintf(number, sizeof(number), "%011llo", static_cast<unsigned long long>(bytes));
  header.replace(124, 11, number);
  header[156] = type;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  header.replace(148, 8, "        ");
  unsigned sum = 0;
  for (unsigned char c : header) sum += c;
  std::snprintf(number, sizeof(number), "%06o", sum);
  header.replace(148, 7, std::string(number, 7));
  return header;
}

inline std::string TarFile(const std::string& name, const std::string& bytes, char type = '0') {
  return TarHeader(name, bytes.size(), type) + bytes +
         std::string((512 - bytes.size() % 512) % 512, '\0');
}

inline std::string Tar(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out;
  for (const auto& [name, bytes] : files) out += TarFile(name, bytes);
  return out + std::string(1024, '\0');
}

inline DataSource WebSource(const std::vector<std::string>& shards) {
  DataSource source;
  auto* web = source.mutable_webdataset();
  for (const std::string& shard : shards) web->add_shards(shard);
  web->set_image("jpg");
  web->set_label("cls");
  web->set_corrupt_max(100);
  return source;
}

}  // namespace starling::data_testing

#endif  // STARLING_WORKER_DATA_TESTING_IMAGES_H_
