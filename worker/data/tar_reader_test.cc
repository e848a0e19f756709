#include "worker/data/tar_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "worker/data/testing/files.h"
#include "worker/data/testing/images.h"

namespace starling {
namespace {

using data_testing::Tar;
using data_testing::TarFile;
using data_testing::TarHeader;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kEnd(1024, '\0');

struct Listing {
  std::vector<std::string> names;
  std::vector<std::string> contents;
  absl::Status status;
};

Listing List(const std::string& tar) {
  Listing out;
  const auto file = *RandomAccessFile::Open(data_testing::WriteNewFile("x.tar", tar));
  BlockReader block(*file);
  TarReader reader(*file, &block);
  while (true) {
    const auto member = reader.Next();
    out.status = member.status();
    if (!member.ok() || !*member) return out;
    out.names.push_back((*member)->name);
    std::string bytes((*member)->bytes, '\0');
    EXPECT_EQ(file->ReadAt((*member)->offset,
                           absl::MakeSpan(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size())),
              absl::OkStatus());
    out.contents.push_back(bytes);
  }
}

std::string Error(const std::string& tar) {
  const Listing listing = List(tar);
  EXPECT_EQ(listing.status.code(), absl::StatusCode::kInvalidArgument) << listing.status;
  return std::string(listing.status.message());
}

TEST(TarReader, ListsFilesAndPassesOverFolders) {
  const std::string large(100'000, 'x');  // larger than the reader's block
  const Listing listing =
      List(TarFile("d/", "", '5') + Tar({{"d/a.jpg", "first"}, {"b", ""}, {"c.bin", large}}));
  EXPECT_TRUE(listing.status.ok()) << listing.status;
  EXPECT_THAT(listing.names, ElementsAre("d/a.jpg", "b", "c.bin"));
  EXPECT_THAT(listing.contents, ElementsAre("first", "", large));
}

TEST(TarReader, LongNamesAndSizes) {
  const std::string name = std::string(150, 'n') + ".jpg";
  const std::string gnu =
      TarFile("././@LongLink", name + '\0', 'L') + Tar({{name.substr(0, 100), "x"}});
  EXPECT_THAT(List(gnu).names, ElementsAre(name));
  // With its length and a space before it: 164 bytes.
  const std::string record = "path=" + name + "\n";
  const std::string pax = TarFile("PaxHeader", "164 " + record + "18 comment=abcdef\n", 'x') +
                          Tar({{"short", "x"}, {"next", "y"}});
  ASSERT_EQ(record.size() + 4, 164u);
  EXPECT_THAT(List(pax).names, ElementsAre(name, "next"));
  // A large size in GNU's form: big-endian, with the top bit set.
  std::string header = TarHeader("big", 0);
  header.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12));
  unsigned sum = 0;
  header.replace(148, 8, "        ");
  for (unsigned char c : header) sum += c;
  char number[16];
  std::snprintf(number, sizeof(number), "%06o", sum);
  header.replace(148, 7, std::string(number, 7));
  EXPECT_THAT(List(header + "abc" + std::string(509, '\0') + kEnd).contents, ElementsAre("abc"));
}

TEST(TarReader, NamesWhatIsWrongAndWhere) {
  const std::string good = Tar({{"a.jpg", "first"}, {"b.jpg", std::string(2000, 'b')}});
  EXPECT_THAT(Error(""),
              HasSubstr("x.tar: tar header at byte 0: the file ends here, without the mark"));
  EXPECT_THAT(Error(good.substr(0, 1024)), HasSubstr("at byte 1024: the file ends here"));
  EXPECT_THAT(Error(good.substr(0, 1100)), HasSubstr("at byte 1024: the file ends here"));
  EXPECT_THAT(Error(good.substr(0, 3000)),
              HasSubstr("member b.jpg of 2000 bytes is beyond the file's end at 3000: truncated"));
  std::string bad = good;
  bad[1030] ^= 1;
  EXPECT_THAT(Error(bad),
              HasSubstr("at byte 1024: its checksum is wrong: corrupt, or no tar file"));
  EXPECT_THAT(Error(std::string(2048, 'z')), HasSubstr("checksum"));
  EXPECT_THAT(Error(TarFile("l", "", '2') + kEnd), HasSubstr("member l is no file (type '2')"));
  EXPECT_THAT(Error(TarHeader("x", 5000, 'L') + std::string(5120, 'x') + kEnd),
              HasSubstr("an extension of 5000 bytes"));
  for (const char* record : {"nonsense", "99 path=a\n", "3 a\n", "8 path=a", "10 path a\n"}) {
    EXPECT_THAT(Error(TarFile("p", record, 'x') + kEnd), HasSubstr("a pax record is malformed"))
        << record;
  }
  EXPECT_THAT(Error(TarFile("p", "12 size=abc\n", 'x') + kEnd),
              HasSubstr("pax size is not a number"));
}

TEST(TarReader, RandomDamageIsRefusedOrHarmless) {
  std::mt19937 random(3);
  const std::string good = TarFile("././@LongLink", std::string(120, 'n') + '\0', 'L') +
                           Tar({{"n", "first"}, {"b.jpg", std::string(700, 'b')}});
  for (int round = 0; round < 500; ++round) {
    std::string tar = good;
    for (int flips = 1 + random() % 3; flips > 0; --flips)
      tar[random() % tar.size()] = static_cast<char>(random());
    if (random() % 3 == 0) tar.resize(random() % tar.size());
    const Listing listing = List(tar);
    if (!listing.status.ok()) {
      EXPECT_EQ(listing.status.code(), absl::StatusCode::kInvalidArgument) << listing.status;
    }
    EXPECT_LE(listing.names.size(), 6u);
  }
}

}  // namespace
}  // namespace starling
