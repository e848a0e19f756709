#include "worker/data/contact_sheet.h"

#include <zlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr int64_t kColumns = 8;
constexpr int64_t kImagesMax = 64;
constexpr int64_t kTileMin = 64;  // smaller images are enlarged to about that
constexpr int64_t kGap = 2;
constexpr uint8_t kBackground = 128;

void AppendBigEndian(uint32_t value, std::string* out) {
  for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}

void AppendChunk(const std::string& type, const std::string& data, std::string* out) {
  AppendBigEndian(static_cast<uint32_t>(data.size()), out);
  const std::string body = type + data;
  *out += body;
  AppendBigEndian(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()), body.size())), out);
}

struct Tones {
  float least = 0;
  float greatest = 1;
  uint8_t operator()(float value) const {
    return static_cast<uint8_t>(std::clamp((value - least) / (greatest - least), 0.0f, 1.0f) * 255 + 0.5f);
  }
};

Tones TonesOf(const std::vector<float>& values) {
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  if (*least >= 0 && *greatest <= 1) return {};
  return *least < *greatest ? Tones{*least, *greatest} : Tones{*least, *least + 1};
}

}  // namespace

absl::StatusOr<Picture> MakeContactSheet(const DataSet& data, const AugmentDraw* draw) {
  const std::vector<int64_t>& shape = data.sample_shape();
  if (data.format().type != FLOAT32 || shape.size() != 3 || (shape[0] != 1 && shape[0] != 3)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a contact sheet shows images, [1 or 3, height, width]; samples are ", ShapeText(shape)));
  }
  const int64_t images = std::min(kImagesMax, data.samples());
  std::vector<int64_t> ids(images);
  for (int64_t i = 0; i < images; ++i) ids[i] = i;
  std::vector<float> values(images * data.sample_elements());
  std::vector<float> labels(images * data.label_elements());  // of any type: not looked at
  STARLING_RETURN_IF_ERROR(data.Gather(ids, draw, values.data(), labels.data()));

  const int64_t height = shape[1], width = shape[2], plane = height * width;
  const int64_t zoom = std::max<int64_t>(1, kTileMin / std::max(height, width));
  const int64_t columns = std::min(kColumns, images);
  Picture out;
  out.height = (images + columns - 1) / columns * (height * zoom + kGap) + kGap;
  out.width = columns * (width * zoom + kGap) + kGap;
  out.rgb.assign(3 * out.height * out.width, kBackground);
  const Tones tones = TonesOf(values);
  for (int64_t i = 0; i < images; ++i) {
    const int64_t top = i / columns * (height * zoom + kGap) + kGap;
    const int64_t left = i % columns * (width * zoom + kGap) + kGap;
    const float* image = values.data() + i * data.sample_elements();
    for (int64_t y = 0; y < height * zoom; ++y) {
      uint8_t* to = &out.rgb[3 * ((top + y) * out.width + left)];
      for (int64_t x = 0; x < width * zoom; ++x) {
        const float* pixel = image + y / zoom * width + x / zoom;
        for (int64_t c = 0; c < 3; ++c) *to++ = tones(pixel[shape[0] == 1 ? 0 : c * plane]);
      }
    }
  }
  return out;
}

std::string EncodePng(const Picture& picture) {
  std::string header;
  AppendBigEndian(static_cast<uint32_t>(picture.width), &header);
  AppendBigEndian(static_cast<uint32_t>(picture.height), &header);
  header += std::string({8, 2, 0, 0, 0});  // bits, RGB, deflate, plain filters, not interlaced
  std::string rows;
  for (int64_t y = 0; y < picture.height; ++y) {
    rows.push_back(0);  // no filter
    rows.append(reinterpret_cast<const char*>(picture.rgb.data()) + 3 * y * picture.width, 3 * picture.width);
  }
  uLongf bytes = compressBound(rows.size());
  std::string data(bytes, '\0');
  // Fails only for a buffer that is too small.
  compress(reinterpret_cast<Bytef*>(data.data()), &bytes, reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  data.resize(bytes);
  std::string out = "\x89PNG\r\n\x1a\n";
  AppendChunk("IHDR", header, &out);
  AppendChunk("IDAT", data, &out);
  AppendChunk("IEND", "", &out);
  return out;
}

std::string EncodePpm(const Picture& picture) {
  std::string out = absl::StrCat("P6\n", picture.width, " ", picture.height, "\n255\n");
  out.append(reinterpret_cast<const char*>(picture.rgb.data()), picture.rgb.size());
  return out;
}

}  // namespace starling
