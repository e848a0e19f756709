#include "worker/data/contact_sheet.h"

#include <zlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr int64_t kColumns = 8;
constexpr int64_t kImagesMax = 64;
constexpr int64_t kTileMin = 64;   // smaller images are enlarged to about this
constexpr int64_t kTileMax = 256;  // larger ones are reduced to at most this
constexpr int64_t kGap = 2;
constexpr uint8_t kBackground = 128;

void AppendBigEndian(uint32_t value, std::string* out) {
  for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}

void AppendChunk(const std::string& type, const std::string& data, std::string* out) {
  AppendBigEndian(static_cast<uint32_t>(data.size()), out);
  const std::string body = type + data;
  *out += body;
  AppendBigEndian(
      static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(body.data()), body.size())),
      out);
}

struct Tones {
  float least = 0;
  float greatest = 1;
  uint8_t operator()(float value) const {
    return static_cast<uint8_t>(std::clamp((value - least) / (greatest - least), 0.0f, 1.0f) * 255 +
                                0.5f);
  }
};

Tones TonesBetween(float least, float greatest) {
  if (least >= 0 && greatest <= 1) return {};
  return least < greatest ? Tones{least, greatest} : Tones{least, least + 1};
}

// How an image becomes a tile: `shrink` x `shrink` pixels are averaged, or each pixel is drawn as
// `zoom` x `zoom`.
struct Tiling {
  int64_t channels = 0, height = 0, width = 0;  // of an image
  int64_t shrink = 1;
  int64_t zoom = 1;
  int64_t rows = 0, columns = 0;  // of a shrunk one

  explicit Tiling(const std::vector<int64_t>& shape)
      : channels(shape[0]), height(shape[1]), width(shape[2]) {
    const int64_t longer = std::max(height, width);
    shrink = (longer + kTileMax - 1) / kTileMax;
    zoom = std::max<int64_t>(1, kTileMin / longer);
    rows = (height + shrink - 1) / shrink;
    columns = (width + shrink - 1) / shrink;
  }
  int64_t elements() const { return channels * rows * columns; }

  void Shrink(const float* image, float* out) const {
    for (int64_t c = 0; c < channels; ++c, image += height * width) {
      for (int64_t y = 0; y < rows; ++y) {
        for (int64_t x = 0; x < columns; ++x) *out++ = Mean(image, y * shrink, x * shrink);
      }
    }
  }

 private:
  float Mean(const float* plane, int64_t top, int64_t left) const {
    const int64_t bottom = std::min(height, top + shrink), right = std::min(width, left + shrink);
    double sum = 0;
    for (int64_t y = top; y < bottom; ++y) {
      for (int64_t x = left; x < right; ++x) sum += plane[y * width + x];
    }
    return static_cast<float>(sum / static_cast<double>((bottom - top) * (right - left)));
  }
};

}  // namespace

absl::StatusOr<Picture> MakeContactSheet(const DataSet& data, const AugmentDraw* draw) {
  const std::vector<int64_t>& shape = data.sample_shape();
  if (data.format().type != FLOAT32 || shape.size() != 3 || (shape[0] != 1 && shape[0] != 3)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a contact sheet shows images, [1 or 3, height, width]; samples are ", ShapeText(shape)));
  }
  const int64_t images = std::min(kImagesMax, data.samples());
  const Tiling tiling(shape);
  std::vector<float> image(data.sample_elements());
  std::vector<float> labels(data.label_elements());  // of any type, because they are ignored
  std::vector<float> tiles(images * tiling.elements());
  for (int64_t i = 0; i < images; ++i) {
    STARLING_RETURN_IF_ERROR(data.Gather({i}, draw, image.data(), labels.data()));
    tiling.Shrink(image.data(), tiles.data() + i * tiling.elements());
  }

  const int64_t plane = tiling.rows * tiling.columns, zoom = tiling.zoom;
  const int64_t height = tiling.rows * zoom, width = tiling.columns * zoom;
  const int64_t columns = std::min(kColumns, images);
  Picture out;
  out.height = (images + columns - 1) / columns * (height + kGap) + kGap;
  out.width = columns * (width + kGap) + kGap;
  out.rgb.assign(3 * out.height * out.width, kBackground);
  const auto [least, greatest] = std::minmax_element(tiles.begin(), tiles.end());
  const Tones tones = TonesBetween(*least, *greatest);
  for (int64_t i = 0; i < images; ++i) {
    const int64_t top = i / columns * (height + kGap) + kGap;
    const int64_t left = i % columns * (width + kGap) + kGap;
    const float* tile = tiles.data() + i * tiling.elements();
    for (int64_t y = 0; y < height; ++y) {
      uint8_t* to = &out.rgb[3 * ((top + y) * out.width + left)];
      for (int64_t x = 0; x < width; ++x) {
        const float* pixel = tile + y / zoom * tiling.columns + x / zoom;
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
    rows.append(reinterpret_cast<const char*>(picture.rgb.data()) + 3 * y * picture.width,
                3 * picture.width);
  }
  uLongf bytes = compressBound(rows.size());
  std::string data(bytes, '\0');
  // Fails only if the buffer is too small.
  compress(reinterpret_cast<Bytef*>(data.data()), &bytes,
           reinterpret_cast<const Bytef*>(rows.data()), rows.size());
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
