#include "worker/data/image_data_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "worker/data/data_digest.h"
#include "worker/data/testing/files.h"
#include "worker/data/testing/images.h"

namespace starling {
namespace {

using data_testing::DamagedBody;
using data_testing::Decoded;
using data_testing::Jpeg;
using data_testing::Pixels;
using data_testing::Tar;
using data_testing::WebSource;
using data_testing::WriteFile;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Files = std::vector<std::pair<std::string, std::string>>;

constexpr int kHeight = 16;
constexpr int kWidth = 24;

// Samples 0 .. n-1: image of seed i, label i.
Files Good(int n) {
  Files files;
  for (int i = 0; i < n; ++i) {
    files.emplace_back(absl::StrCat("00", i, ".jpg"), Jpeg(kHeight, kWidth, i));
    files.emplace_back(absl::StrCat("00", i, ".cls"), absl::StrCat(i));
  }
  return files;
}

DataSource Source(const Files& files, const std::string& name = "w.tar") {
  return WebSource({WriteFile(name, Tar(files))});
}

std::shared_ptr<const DataSet> Open(const DataSource& source, const DataSetOptions& options = {}) {
  auto data = DataSet::Open(source, {}, options);
  EXPECT_TRUE(data.ok()) << data.status();
  return *std::move(data);
}

std::string Error(const DataSource& source, const DataSetOptions& options = {}) {
  const absl::Status status = DataSet::Open(source, {}, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

struct Sample {
  std::vector<float> pixels;  // planes
  int32_t label = -1;
};

Sample At(const DataSet& data, int64_t id, const AugmentDraw* draw = nullptr) {
  Sample out;
  out.pixels.resize(data.sample_elements());
  EXPECT_EQ(data.Gather({id}, draw, out.pixels.data(), &out.label), absl::OkStatus());
  return out;
}

// Plane c of rows of red, green, blue, scaled.
std::vector<float> Planes(const std::vector<uint8_t>& rgb) {
  std::vector<float> out;
  for (int c = 0; c < 3; ++c) {
    for (size_t i = c; i < rgb.size(); i += 3)
      out.push_back(static_cast<float>(rgb[i]) * (1.0f / 255.0f));
  }
  return out;
}

TEST(WebDataset, DecodesIntoPlanes) {
  const auto data = Open(Source(Good(3)));
  EXPECT_EQ(data->samples(), 3);
  EXPECT_EQ(data->classes(), 3);
  EXPECT_THAT(data->sample_shape(), ElementsAre(3, kHeight, kWidth));
  EXPECT_EQ(data->format().label_type, INT32);
  for (int i = 0; i < 3; ++i) {
    const Sample sample = At(*data, i);
    EXPECT_EQ(sample.label, i);
    EXPECT_EQ(sample.pixels, Planes(Decoded(Jpeg(kHeight, kWidth, i), kHeight, kWidth)));
  }
  Normalize normalize;
  for (double mean : {0.1, 0.2, 0.3}) normalize.add_mean(mean);
  for (double std : {1.0, 2.0, 4.0}) normalize.add_std(std);
  const auto scaled = *DataSet::Open(Source(Good(3)), normalize, {});
  const Sample sample = At(*scaled, 1);
  const Sample raw = At(*data, 1);
  const size_t plane = kHeight * kWidth;
  EXPECT_FLOAT_EQ(sample.pixels[5], raw.pixels[5] - 0.1f);
  EXPECT_FLOAT_EQ(sample.pixels[2 * plane + 5], (raw.pixels[2 * plane + 5] - 0.3f) / 4);
}

TEST(WebDataset, KeysExtensionsAndShards) {
  const std::string image = Jpeg(kHeight, kWidth, 1);
  // Upper case, directories, more dots, a member of another kind, a sample of another kind, names
  // to skip, the label before the image; a shard's end ends a sample.
  const std::string one = WriteFile("1.tar", Tar({{"__meta__.json", "{}"},
                                                  {"./a/x.JPG", image},
                                                  {"./a/x.seg.png", "?"},
                                                  {"./a/x.CLS", "3\n"},
                                                  {"readme", "?"},
                                                  {"only.json", "{}"},
                                                  {"b/x.cls", " 1 "},
                                                  {"b/x.jpg", image}}));
  const std::string two = WriteFile("2.tar", Tar({{"b/x.jpg", image}, {"b/x.cls", "2"}}));
  const auto data = Open(WebSource({one, two}));
  ASSERT_EQ(data->samples(), 3);
  EXPECT_EQ(At(*data, 0).label, 3);
  EXPECT_EQ(At(*data, 1).label, 1);
  EXPECT_EQ(At(*data, 2).label, 2);
  DataSource other = WebSource({one});
  other.mutable_webdataset()->set_label("seg.png");
  EXPECT_THAT(
      Error(other),
      HasSubstr("1.tar: sample a/x: expected a label that is a class number >= 0, got \"?\""));
}

// Several threads read them.
TEST(WebDataset, ManyShardsAreInTheirOrderAndTheFirstErrorCounts) {
  std::vector<std::string> shards;
  std::vector<int> labels;
  for (int s = 0; s < 20; ++s) {
    Files files;
    for (int i = 0; i <= s % 3; ++i) {
      labels.push_back(100 * s + i);
      files.emplace_back(absl::StrCat(i, ".jpg"), Jpeg(8, 8, i));
      files.emplace_back(absl::StrCat(i, ".cls"), absl::StrCat(labels.back()));
    }
    shards.push_back(WriteFile(absl::StrCat("many-", s, ".tar"), Tar(files)));
  }
  const auto data = Open(WebSource(shards));
  ASSERT_EQ(data->samples(), static_cast<int64_t>(labels.size()));
  for (size_t i = 0; i < labels.size(); ++i)
    EXPECT_EQ(At(*data, static_cast<int64_t>(i)).label, labels[i]);
  for (const int bad : {17, 11, 4}) {
    WriteFile(absl::StrCat("many-", bad, ".tar"), Tar(Files{{"a.jpg", Jpeg(8, 8, 1)}}));
    EXPECT_THAT(Error(WebSource(shards)), HasSubstr(absl::StrCat("many-", bad, ".tar: sample a")));
  }
}

TEST(WebDataset, ClassNames) {
  DataSource source = Source({{"a.jpg", Jpeg(8, 8, 0)},
                              {"a.cls", "cat"},
                              {"b.jpg", Jpeg(8, 8, 1)},
                              {"b.cls", "dog\n"},
                              {"c.jpg", Jpeg(8, 8, 2)},
                              {"c.cls", "1"}});
  EXPECT_THAT(Error(source),
              HasSubstr("got \"cat\"; for names, say which file lists them (classes)"));
  source.mutable_webdataset()->set_classes(WriteFile("classes.txt", "bird\r\ncat\r\n\r\ndog\r\n"));
  const auto data = Open(source);
  EXPECT_EQ(data->classes(), 3);
  EXPECT_THAT(data->class_names(), ElementsAre("bird", "cat", "dog"));
  EXPECT_EQ(At(*data, 0).label, 1);
  EXPECT_EQ(At(*data, 1).label, 2);
  EXPECT_EQ(At(*data, 2).label, 1);  // a number is accepted
  source.mutable_webdataset()->set_classes(WriteFile("classes.txt", "bird\ncat\n"));
  EXPECT_THAT(Error(source), HasSubstr("sample b: unknown class \"dog\": "));
  EXPECT_THAT(Error(source), HasSubstr("classes.txt lists 2: bird, cat"));
  source.mutable_webdataset()->set_classes(WriteFile("classes.txt", "cat\ncat\n"));
  EXPECT_THAT(Error(source), HasSubstr("class \"cat\" is there twice"));
  source.mutable_webdataset()->set_classes(WriteFile("classes.txt", "\n"));
  EXPECT_THAT(Error(source), HasSubstr("no class names"));
}

TEST(WebDataset, RefusesSamplesThatAreNotWhole) {
  const std::string image = Jpeg(8, 8, 0);
  EXPECT_THAT(Error(Source({{"a.jpg", image}})),
              HasSubstr("sample a: it has no member .cls; it has jpg"));
  EXPECT_THAT(Error(Source({{"a.cls", "1"}})),
              HasSubstr("sample a: it has no member .jpg; it has cls"));
  EXPECT_THAT(Error(Source({{"a.jpg", image}, {"b.jpg", image}, {"a.cls", "1"}})),
              HasSubstr("members of one sample must lie next to each other"));
  EXPECT_THAT(Error(Source({{"a.jpg", image}, {"a.JPG", image}, {"a.cls", "1"}})),
              HasSubstr("two members .jpg"));
  EXPECT_THAT(Error(Source({{"a.jpg", image}, {"a.cls", "-1"}})),
              HasSubstr("a class number >= 0, got \"-1\""));
  EXPECT_THAT(Error(Source({{"a.jpg", image}, {"a.cls", ""}})), HasSubstr("got \"\""));
  EXPECT_THAT(Error(Source({{"a.jpg", image}, {"a.cls", std::string(5000, '1')}})),
              HasSubstr("a label of 5000 bytes"));
  EXPECT_THAT(Error(Source({{"a.png", image}})),
              HasSubstr("no samples with members .jpg and .cls"));
  EXPECT_THAT(Error(WebSource({})), HasSubstr("at least one shard"));
  EXPECT_THAT(Error(Source(Good(3)), {.classes = 2}),
              HasSubstr("002.jpg: it has label 2, expected less than 2"));
  const std::string whole = Tar(Good(2));
  EXPECT_THAT(Error(WebSource({WriteFile("t.tar", whole.substr(0, whole.size() / 2))})),
              HasSubstr("truncated"));
  EXPECT_EQ(DataSet::Open(WebSource({"/no/such.tar"}), {}, {}).status().code(),
            absl::StatusCode::kNotFound);
}

// If two shards are read concurrently, either may be the one that fits.
TEST(WebDataset, FromMemoryAndFromItsFilesTheSame) {
  const std::string one = WriteFile("kept-1.tar", Tar(Good(3)));
  const std::string two = WriteFile("kept-2.tar", Tar(Good(2)));
  const auto kept = Open(WebSource({one, two}));
  for (const uint64_t bytes : {std::filesystem::file_size(one), uint64_t{0}}) {
    DataSetOptions options;
    options.limits.kept_bytes_max = bytes;
    const auto read = Open(WebSource({one, two}), options);
    ASSERT_EQ(read->samples(), kept->samples());
    for (int64_t id = 0; id < kept->samples(); ++id) {
      EXPECT_EQ(At(*read, id).pixels, At(*kept, id).pixels) << id;
      EXPECT_EQ(At(*read, id).label, At(*kept, id).label) << id;
    }
  }
}

TEST(WebDataset, AnImageWithoutAHeaderIsLeftOut) {
  Files files = Good(4);
  files[2].second = "not a jpeg at all";
  DataSource source = Source(files);
  const auto data = Open(source);
  EXPECT_EQ(data->samples(), 3);
  EXPECT_EQ(At(*data, 1).label, 2);
  EXPECT_EQ(data->corrupt().count, 1u);
  EXPECT_THAT(data->corrupt().names, ElementsAre(HasSubstr("w.tar: 001.jpg: no JPEG image")));
  source.mutable_webdataset()->set_corrupt_max(0);
  const absl::Status status = DataSet::Open(source, {}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("1 corrupt images, more than the 0 that corruptMax allows"));
  files.resize(4);
  files[0].second = files[2].second;
  EXPECT_THAT(Error(Source(files)), HasSubstr("first corrupt image: "));
}

TEST(WebDataset, ADamagedImageIsReplacedByTheNext) {
  Files files = Good(4);
  for (int i : {1, 2, 3}) files[2 * i].second = DamagedBody(files[2 * i].second);
  DataSource source = Source(files);
  std::vector<std::string> warnings;
  DataSetOptions options;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto data = Open(source, options);
  EXPECT_EQ(data->samples(), 4);
  EXPECT_EQ(data->corrupt().count, 0u);
  const Sample zero = At(*data, 0);
  EXPECT_EQ(zero.label, 0);
  EXPECT_THAT(warnings, IsEmpty());
  for (int round = 0; round < 2; ++round) {
    for (int i : {1, 2, 3}) {
      EXPECT_EQ(At(*data, i).label, 0) << i;  // 1, 2 and 3 are all damaged: round to 0
      EXPECT_EQ(At(*data, i).pixels, zero.pixels);
    }
  }
  EXPECT_EQ(data->corrupt().count, 3u);  // each once
  EXPECT_THAT(data->corrupt().names[0], HasSubstr("w.tar: 001.jpg: "));
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_THAT(warnings[0], HasSubstr("w.tar: 001.jpg: corrupt image replaced by the next one"));
  // The same in another order, by another worker.
  const auto other = Open(source);
  EXPECT_EQ(At(*other, 3).pixels, zero.pixels);
  EXPECT_EQ(At(*other, 1).pixels, zero.pixels);

  source.mutable_webdataset()->set_corrupt_max(2);
  const auto limited = Open(source);
  Sample sample = zero;
  EXPECT_TRUE(limited->Gather({3}, nullptr, sample.pixels.data(), &sample.label).ok());
  const absl::Status status = limited->Gather({1}, nullptr, sample.pixels.data(), &sample.label);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("3 corrupt images, more than the 2 that corruptMax allows"));
  // It keeps failing.
  EXPECT_FALSE(limited->Gather({1}, nullptr, sample.pixels.data(), &sample.label).ok());

  files[0].second = DamagedBody(files[0].second);
  const auto none = Open(Source(files));
  EXPECT_THAT(
      std::string(none->Gather({1}, nullptr, sample.pixels.data(), &sample.label).message()),
      HasSubstr("no image can be decoded"));
}

// Whatever is found corrupt, by whichever worker reads it first, two workers agree; and they
// disagree about other images of the same sizes.
TEST(WebDataset, TheDigestIsTheSameForTheSameFiles) {
  Files files = Good(8);
  files[4].second = DamagedBody(files[4].second);
  DataSource source = Source(files);
  source.mutable_webdataset()->set_corrupt_max(8);
  const uint64_t digest = DataDigest(*Open(source), nullptr, 1).value();
  const auto probed = Open(source);
  ASSERT_TRUE(probed->Probe(1 << 20).ok());
  EXPECT_EQ(DataDigest(*probed, nullptr, 1).value(), digest);
  Files relabelled = files;
  relabelled[1].second = "5";
  DataSource other = Source(relabelled, "other.tar");
  other.mutable_webdataset()->set_corrupt_max(8);
  EXPECT_NE(DataDigest(*Open(other), nullptr, 1).value(), digest);
}

TEST(WebDataset, InspectionWarns) {
  Files files = Good(4);
  files[0].second = DamagedBody(files[0].second);
  files[4].second = "nothing";
  JobSpec spec;
  *spec.mutable_train() = Source(files);
  const Inspection found = InspectData(spec);
  EXPECT_EQ(found.error(), "");
  EXPECT_EQ(found.train_samples(), 3u);
  EXPECT_THAT(found.warnings(), ElementsAre(HasSubstr("data.train: corrupt image, not used: "),
                                            HasSubstr("000.jpg")));
  spec.mutable_train()->mutable_webdataset()->set_corrupt_max(1);
  EXPECT_THAT(InspectData(spec).error(),
              HasSubstr("data.train: 2 corrupt images, more than the 1"));
}

TEST(WebDataset, SizesThatDiffer) {
  DataSource source = Source(
      {{"a.jpg", Jpeg(16, 24, 0)}, {"a.cls", "0"}, {"b.jpg", Jpeg(20, 24, 1)}, {"b.cls", "1"}});
  EXPECT_THAT(Error(source),
              HasSubstr("b.jpg: an image of 24 x 20 pixels, expected 24 x 16: say what to do"));
  auto* web = source.mutable_webdataset();
  web->set_height(12);
  web->set_width(8);
  web->set_fit(DataSource::WebDataset::CENTER_CROP);
  const auto cropped = Open(source);
  EXPECT_THAT(cropped->sample_shape(), ElementsAre(3, 12, 8));
  const std::vector<uint8_t> whole = Decoded(Jpeg(20, 24, 1), 20, 24);
  const Sample sample = At(*cropped, 1);
  // Rows 4 to 15, columns 8 to 15.
  EXPECT_FLOAT_EQ(sample.pixels[0], whole[3 * (4 * 24 + 8)] / 255.0f);
  EXPECT_FLOAT_EQ(sample.pixels[12 * 8 - 1], whole[3 * (15 * 24 + 15)] / 255.0f);
  web->set_height(18);
  EXPECT_THAT(
      Error(source),
      HasSubstr("a.jpg: an image of 24 x 16 pixels, expected at least 8 x 18: with fit resize"));
  web->set_fit(DataSource::WebDataset::RESIZE);
  const auto resized = Open(source);
  EXPECT_THAT(resized->sample_shape(), ElementsAre(3, 18, 8));
  EXPECT_EQ(At(*resized, 1).label, 1);
}

TEST(WebDataset, ResizeKeepsWhatIsFlatAndWhereThingsAre) {
  // Left half black, right half white.
  std::vector<uint8_t> halves;
  for (int i = 0; i < 64 * 64; ++i) halves.insert(halves.end(), 3, i % 64 < 32 ? 0 : 255);
  DataSource source = Source({{"a.jpg", Jpeg(halves, 64, 64)}, {"a.cls", "0"}});
  auto* web = source.mutable_webdataset();
  web->set_fit(DataSource::WebDataset::RESIZE);
  for (int side : {5, 8, 16, 33, 64, 100}) {
    web->set_height(side);
    web->set_width(2 * side);  // the cover is 2 * side wide and high; its middle rows are used
    const Sample sample = At(*Open(source), 0);
    const float* row = sample.pixels.data() + (side / 2) * 2 * side;
    EXPECT_NEAR(row[0], 0, 0.02) << side;
    EXPECT_NEAR(row[side / 2], 0, 0.08) << side;
    EXPECT_NEAR(row[2 * side - 1], 1, 0.02) << side;
    EXPECT_NEAR(row[side + side / 2], 1, 0.08) << side;
  }
}

TEST(WebDataset, Gray) {
  DataSource source = Source(Good(1));
  source.mutable_webdataset()->set_gray(true);
  const auto data = Open(source);
  EXPECT_THAT(data->sample_shape(), ElementsAre(1, kHeight, kWidth));
  const std::vector<uint8_t> rgb = Decoded(Jpeg(kHeight, kWidth, 0), kHeight, kWidth);
  EXPECT_NEAR(At(*data, 0).pixels[7] * 255, 0.299 * rgb[21] + 0.587 * rgb[22] + 0.114 * rgb[23], 3);
}

DataSetOptions Augmented(uint32_t padding, bool flip) {
  DataSetOptions options;
  options.augment.set_crop_padding(padding);
  options.augment.set_horizontal_flip(flip);
  return options;
}

// By definition: sample pixel (y, x), mirrored or not, is image pixel (y + down, x + right), or
// black.
std::vector<float> Placed(const std::vector<float>& planes, const Placement& placement) {
  std::vector<float> out;
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < kHeight; ++y) {
      for (int x = 0; x < kWidth; ++x) {
        const int64_t row = y + placement.down;
        const int64_t column = (placement.mirrored ? kWidth - 1 - x : x) + placement.right;
        const bool inside = row >= 0 && row < kHeight && column >= 0 && column < kWidth;
        out.push_back(inside ? planes[(c * kHeight + row) * kWidth + column] : 0);
      }
    }
  }
  return out;
}

TEST(Augment, IsAPureFunctionOfSeedEpochAndSample) {
  const DataSource source = Source(Good(3));
  const auto data = Open(source, Augmented(4, true));
  const auto same = Open(source, Augmented(4, true));
  const Augmenter augmenter = *Augmenter::Make(Augmented(4, true).augment, {3, kHeight, kWidth});
  std::set<std::vector<float>> seen;
  std::set<int64_t> downs;
  std::set<int64_t> rights;
  int mirrored = 0;
  for (uint32_t epoch = 0; epoch < 100; ++epoch) {
    const AugmentDraw draw{7, epoch};
    const Placement placement = augmenter.Draw(draw, 1);
    downs.insert(placement.down);
    rights.insert(placement.right);
    mirrored += placement.mirrored;
    const Sample sample = At(*data, 1, &draw);
    EXPECT_EQ(sample.label, 1);
    EXPECT_EQ(sample.pixels, Placed(At(*data, 1).pixels, placement));
    EXPECT_EQ(At(*same, 1, &draw).pixels, sample.pixels);
    seen.insert(sample.pixels);
  }
  EXPECT_GT(seen.size(), 60u);
  EXPECT_EQ(downs, (std::set<int64_t>{-4, -3, -2, -1, 0, 1, 2, 3, 4}));
  EXPECT_EQ(rights, downs);
  EXPECT_TRUE(mirrored > 30 && mirrored < 70) << mirrored;
  const Placement other = augmenter.Draw({8, 0}, 1);
  const Placement first = augmenter.Draw({7, 0}, 1);
  EXPECT_FALSE(other.down == first.down && other.right == first.right &&
               other.mirrored == first.mirrored);
}

// Pinned: a job that is resumed by a later release must see the same images.
TEST(Augment, DoesNotChangeBetweenReleases) {
  const Augmenter augmenter = *Augmenter::Make(Augmented(4, true).augment, {3, 32, 32});
  std::vector<int64_t> found;
  for (int64_t sample : {0, 1, 2}) {
    const Placement placement = augmenter.Draw({7, 3}, sample);
    found.insert(found.end(), {placement.down, placement.right, placement.mirrored});
  }
  EXPECT_THAT(found, ElementsAre(-2, 4, 1, -1, -4, 0, 2, 4, 0));
}

TEST(Augment, OfImagesInMemoryToo) {
  const DataSource idx = data_testing::IdxSource(WriteFile("ai", data_testing::Images(4, 6, 5)),
                                                 WriteFile("al", data_testing::Labels(4)));
  const auto data = Open(idx, Augmented(2, true));
  const Augmenter augmenter = *Augmenter::Make(Augmented(2, true).augment, {1, 6, 5});
  const std::vector<float> plain = At(*data, 2).pixels;
  for (uint32_t epoch = 0; epoch < 20; ++epoch) {
    const AugmentDraw draw{1, epoch};
    const Placement placement = augmenter.Draw(draw, 2);
    const Sample sample = At(*data, 2, &draw);
    for (int y = 0; y < 6; ++y) {
      for (int x = 0; x < 5; ++x) {
        const int64_t row = y + placement.down;
        const int64_t column = (placement.mirrored ? 4 - x : x) + placement.right;
        const bool inside = row >= 0 && row < 6 && column >= 0 && column < 5;
        EXPECT_EQ(sample.pixels[5 * y + x], inside ? plain[5 * row + column] : 0);
      }
    }
  }
}

TEST(Augment, RefusesWhatIsNoImage) {
  EXPECT_THAT(Error(data_testing::CsvSource(WriteFile("a.csv", "1,2,0\n")), Augmented(1, false)),
              HasSubstr("augment: expected samples that are images"));
  EXPECT_THAT(Error(Source(Good(1)), Augmented(16, false)),
              HasSubstr("expected a crop padding below 16"));
}

TEST(WebDataset, ManyThreadsMakeTheSameBatches) {
  Files files = Good(5);
  files[4].second = DamagedBody(files[4].second);
  const auto data = Open(Source(files), Augmented(3, true));
  const std::vector<int64_t> ids = {4, 2, 0, 1, 3};
  const AugmentDraw draw{5, 1};
  std::vector<std::vector<float>> batches(4, std::vector<float>(5 * data->sample_elements()));
  std::vector<std::thread> threads;
  for (auto& batch : batches) {
    threads.emplace_back([&] {
      std::vector<int32_t> labels(5);
      for (int round = 0; round < 20; ++round)
        EXPECT_TRUE(data->Gather(ids, &draw, batch.data(), labels.data()).ok());
      EXPECT_THAT(labels, ElementsAre(4, 3, 0, 1, 3));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& batch : batches) EXPECT_EQ(batch, batches[0]);
  EXPECT_EQ(data->corrupt().count, 1u);
}

TEST(WebDataset, RandomDamageIsRefusedOrCounted) {
  std::mt19937 random(11);
  const std::string good = Tar(Good(3));
  int opened = 0;
  for (int round = 0; round < 200; ++round) {
    std::string tar = good;
    for (int flips = 1 + random() % 4; flips > 0; --flips)
      tar[random() % tar.size()] = static_cast<char>(random());
    if (random() % 8 == 0) tar.resize(random() % tar.size());
    const auto data = DataSet::Open(WebSource({data_testing::WriteNewFile("f.tar", tar)}), {}, {});
    if (!data.ok()) {
      EXPECT_EQ(data.status().code(), absl::StatusCode::kInvalidArgument) << data.status();
      continue;
    }
    ++opened;
    std::vector<float> pixels((*data)->sample_elements());
    int32_t label = -1;
    for (int64_t i = 0; i < (*data)->samples(); ++i) {
      const absl::Status status = (*data)->Gather({i}, nullptr, pixels.data(), &label);
      if (status.ok()) {
        EXPECT_TRUE(label >= 0 && label < (*data)->classes());
      } else {
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
      }
    }
  }
  EXPECT_GT(opened, 25);
}

TEST(WebDataset, ReadsTheRealCifar) {
  const char* root = std::getenv("STARLING_DATA");
  if (root == nullptr) GTEST_SKIP() << "STARLING_DATA is not set";
  const auto data =
      Open(WebSource({std::string(root) + "/cifar10/test-00000.tar"}), {.classes = 10});
  ASSERT_EQ(data->samples(), 10'000);
  EXPECT_EQ(data->classes(), 10);
  EXPECT_THAT(data->sample_shape(), ElementsAre(3, 32, 32));
  std::vector<int> histogram(10);
  double red = 0;
  for (int64_t i = 0; i < 10'000; ++i) {
    const Sample sample = At(*data, i);
    ++histogram[sample.label];
    for (int p = 0; p < 1024; ++p) red += sample.pixels[p];
  }
  EXPECT_THAT(histogram, testing::Each(1000));
  EXPECT_NEAR(red / (10'000.0 * 1024), 0.4942, 0.002);  // of the binary edition's test images
  EXPECT_EQ(data->corrupt().count, 0u);
}

}  // namespace
}  // namespace starling
