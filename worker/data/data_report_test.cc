#include "worker/data/data_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "worker/data/contact_sheet.h"
#include "worker/data/testing/files.h"
#include "worker/data/testing/images.h"

namespace starling {
namespace {

using data_testing::CsvSource;
using data_testing::IdxSource;
using data_testing::Images;
using data_testing::Labels;
using data_testing::TextSource;
using data_testing::WriteFile;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const DataSet> Open(const DataSource& source) {
  return *DataSet::Open(source, {}, {});
}

DataSource SmallIdx(int n) {
  return IdxSource(WriteFile("ri", Images(n, 2, 3)), WriteFile("rl", Labels(n)));
}

TEST(DataReport, OfImages) {
  const DataReport report = *MakeDataReport(*Open(SmallIdx(5)), 4, 2);
  EXPECT_EQ(report.samples, 5);
  EXPECT_EQ(report.looked_at, 4);
  EXPECT_THAT(report.histogram, ElementsAre(2, 1, 1));
  ASSERT_EQ(report.channels.size(), 1u);
  EXPECT_FLOAT_EQ(report.channels[0].greatest, 35 / 255.0f);
  EXPECT_NEAR(report.channels[0].mean, 17.5 / 255, 1e-6);
  EXPECT_EQ(report.rows.size(), 2u);
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr("samples    5\n"));
  EXPECT_THAT(text, HasSubstr("sample     float32 [1, 2, 3]\n"));
  EXPECT_THAT(text, HasSubstr("looked at  the first 4\n"));
  EXPECT_THAT(text, HasSubstr("values     0 to 0.1373"));
  EXPECT_THAT(text, HasSubstr("classes    3 of 3 occur: 0: 2, 1: 1, 2: 1\n"));
  EXPECT_THAT(text, HasSubstr("-> 1\n"));
}

TEST(DataReport, OfTextAndOfNumbers) {
  const std::string text =
      ReportText(*MakeDataReport(*Open(TextSource(WriteFile("r.txt", "aabab\na"), 3)), 0, 1));
  EXPECT_THAT(text, HasSubstr("sample     int32 [3]\n"));
  EXPECT_THAT(text, HasSubstr("tokens     3 of 256 occur: 10: 1, 97: 3, 98: 2\n"));
  EXPECT_THAT(text, HasSubstr("row 0      \"aab\" -> \"aba\"\n"));
  DataSource csv = CsvSource(WriteFile("r.csv", "1,2,10\n3,4,-2\n"));
  csv.mutable_csv()->set_label_type(DataSource::Csv::LABEL_NUMBER);
  const std::string numbers = ReportText(*MakeDataReport(*Open(csv), 0, 1));
  EXPECT_THAT(numbers, HasSubstr("label      float32 [1]\n"));
  EXPECT_THAT(numbers, HasSubstr("label 0    -2 to 10, mean 4, deviation 6\n"));
  EXPECT_THAT(numbers, HasSubstr("row 0      [1, 2] -> [10]\n"));
}

TEST(DataReport, NamesWhatIsCorrupt) {
  const std::string good = data_testing::Jpeg(8, 8, 1);
  const DataSource source = data_testing::WebSource(
      {WriteFile("r.tar", data_testing::Tar({{"a.jpg", good},
                                             {"a.cls", "0"},
                                             {"b.jpg", data_testing::DamagedBody(good)},
                                             {"b.cls", "1"}}))});
  const std::string text = ReportText(*MakeDataReport(*Open(source), 0, 0));
  EXPECT_THAT(text, HasSubstr("corrupt    1\n"));
  EXPECT_THAT(text, HasSubstr("r.tar: b.jpg: "));
}

TEST(ContactSheet, ShowsImagesSideBySide) {
  const auto data = Open(SmallIdx(10));
  const Picture sheet = *MakeContactSheet(*data, nullptr);
  // 8 in a row, enlarged 21 times (64 / 3), 2 pixels between.
  EXPECT_EQ(sheet.width, 8 * (3 * 21 + 2) + 2);
  EXPECT_EQ(sheet.height, 2 * (2 * 21 + 2) + 2);
  const auto at = [&](int64_t y, int64_t x) { return sheet.rgb[3 * (y * sheet.width + x)]; };
  EXPECT_EQ(at(0, 0), 128);
  EXPECT_EQ(at(2, 2), 0);                             // image 0, pixel 0
  EXPECT_EQ(at(2, 2 + 21), 1);                        // pixel 1
  EXPECT_EQ(at(2 + 21, 2), 3);                        // pixel 3
  EXPECT_EQ(at(2 + 2 * 21 + 2, 2 + 3 * 21 + 2), 90);  // image 9, pixel 0
  EXPECT_FALSE(MakeContactSheet(*Open(CsvSource(WriteFile("s.csv", "1,2,0\n"))), nullptr).ok());
}

TEST(ContactSheet, ReducesLargeImages) {
  const DataSource source = IdxSource(WriteFile("large.idx", Images(3, 600, 300)),
                                      WriteFile("large-labels.idx", Labels(3)));
  const Picture sheet = *MakeContactSheet(*Open(source), nullptr);
  // Reduced to a third in each direction, so that the longer side is at most 256.
  EXPECT_EQ(sheet.width, 3 * (100 + 2) + 2);
  EXPECT_EQ(sheet.height, 200 + 2 + 2);
  // The mean of bytes 0 to 2, 300 to 302 and 600 to 602.
  EXPECT_EQ(sheet.rgb[3 * (2 * sheet.width + 2)], 45);
}

// Parsed by hand, as a PNG reader must: signature, chunks with their CRC, zlib, filters.
TEST(ContactSheet, PngAndPpm) {
  Picture picture{2, 3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}};
  const std::string rgb(picture.rgb.begin(), picture.rgb.end());
  EXPECT_EQ(EncodePpm(picture), "P6\n3 2\n255\n" + rgb);
  const std::string png = EncodePng(picture);
  ASSERT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(png.at(at + i));
    return value;
  };
  std::string types, rows(2 * 10, '\0');
  for (size_t at = 8; at < png.size();) {
    const uint32_t bytes = number(at);
    const std::string type = png.substr(at + 4, 4), data = png.substr(at + 8, bytes);
    EXPECT_EQ(number(at + 8 + bytes),
              crc32(0, reinterpret_cast<const Bytef*>(png.data()) + at + 4, bytes + 4));
    types += type;
    if (type == "IHDR") {
      EXPECT_EQ(data, std::string("\0\0\0\3\0\0\0\2\10\2\0\0\0", 13));
    }
    if (type == "IDAT") {
      uLongf size = rows.size();
      ASSERT_EQ(uncompress(reinterpret_cast<Bytef*>(rows.data()), &size,
                           reinterpret_cast<const Bytef*>(data.data()), bytes),
                Z_OK);
      EXPECT_EQ(size, rows.size());
    }
    at += 12 + bytes;
  }
  EXPECT_EQ(types, "IHDRIDATIEND");
  EXPECT_EQ(rows, '\0' + rgb.substr(0, 9) + '\0' + rgb.substr(9));
}

}  // namespace
}  // namespace starling
