#include "common/config/data_section.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/config/fields.h"
#include "common/config/numbers.h"
#include "common/protocol/limits.h"

namespace starling::config {
namespace {

constexpr double kInt32Max = std::numeric_limits<int32_t>::max();
constexpr double kContextMax = 1 << 24;
constexpr double kLoadingThreadsMax = 64;
constexpr double kCounterSamplesMax = 1 << 24;  // fp32 counts exactly up to this
constexpr double kCorruptMax = 1 << 30;

Field ContextField() {
  return Integer("context", {1, kContextMax}, "", "tokens in a sample", true);
}

std::vector<Field> WindowFields() {
  return {ZeroIsNone(Integer("stride", {1, kInt32Max}, "",
                             "tokens from one sample to the next; by default context")),
          Number("begin", {0, 1}, "0", "share of the file where this part begins"),
          Number("end", {0, 1}, "1", "share of the file where it ends")};
}

Field WindowsField(const std::string& key, const std::string& help, std::vector<Field> fields) {
  for (Field& field : WindowFields()) fields.push_back(std::move(field));
  return Group(key, T::kMap, help, std::move(fields));
}

Field DataSourceField(std::string key, std::string help, bool required) {
  return Group(
      key, T::kOneOf, help,
      {
          Group("idx", T::kMap, "MNIST's format, also .gz",
                {Leaf("images", T::kPath, "", "path of the images", true),
                 Leaf("labels", T::kPath, "", "path of the labels", true)}),
          Group(
              "csv", T::kMap, "rows of values, the last column a class label; also .gz",
              {Leaf("path", T::kPath, "", "path of the file", true),
               Leaf("header", T::kBoolean, "false",
                    "the first line names the columns; without, they are 1, 2, ..."),
               Leaf("separator", T::kString, "\",\"", "one character"),
               Leaf("label", T::kStringList, "", "columns that are the label; by default the last"),
               Leaf("features", T::kStringList, "",
                    "columns that are the sample, in this order; by default all others"),
               Leaf("ignore", T::kStringList, "", "columns that are neither"),
               Word("labelType", {"class", "number"},
                    "class: one integer or name; number: to be fitted"),
               Leaf("classes", T::kStringList, "",
                    "names of the classes, in order; without, labels are integers"),
               Word("part", {"all", "train", "holdout"}, "all, train or holdout"),
               Number("holdoutFraction", {0, 0.99}, "0",
                      "share of each class that `holdout` takes"),
               Integer("holdoutSeed", {0}, "0", "chooses the rows held out")}),
          Group("cifar", T::kMap, "CIFAR's binary edition, also .gz",
                {Leaf("files", T::kPathList, "", "paths of the batches, in order", true),
                 Word("labels", {"cifar10", "fine", "coarse"},
                      "cifar10; or of CIFAR-100: fine or coarse")}),
          Group(
              "webdataset", T::kMap, "tar files of JPEG images and labels",
              {Leaf("shards", T::kPathList, "", "paths of the tar files, in order", true),
               Leaf("image", T::kString, "jpg", "what follows a sample's name where its image is"),
               Leaf("label", T::kString, "cls", "and where its label is"),
               Leaf("classes", T::kPath, "",
                    "path of a file of class names; without, labels are numbers"),
               ByHand(Leaf("size", T::kNumberList, "",
                           "[height, width] of a sample; by default the first image's")),
               Word("fit", {"exact", "crop", "resize"},
                    "images of another size: exact (an error), crop or resize"),
               Leaf("gray", T::kBoolean, "false", "one channel instead of three"),
               Integer("corruptMax", {0, kCorruptMax}, "100",
                       "corrupt images that one worker may meet; one more fails the job")}),
          WindowsField("text", "bytes of a plain text; labels are the next bytes",
                       {Leaf("path", T::kPath, "", "path of the file", true), ContextField()}),
          WindowsField("tokens", "a .bin of nanoGPT or llm.c; labels are the next tokens",
                       {Leaf("path", T::kPath, "", "path of the file", true), ContextField(),
                        Integer("vocabulary", {2, kInt32Max}, "", "tokens are below", true)}),
          Group("counter", T::kMap, "sample i is the number i (for builtin: counter)",
                {Integer("samples", {1, kCounterSamplesMax}, "", "how many", true)}),
      },
      required);
}

void ReadSize(const Section& web, DataSource::WebDataset* out) {
  if (!web.Has("size")) return;
  const std::vector<int64_t> size = web.Integers("size", {1, kImageSideMax});
  if (size.size() != 2) {
    web.Fail("size", absl::StrCat("expected [height, width], got ", size.size(), " numbers"));
    return;
  }
  out->set_height(static_cast<uint32_t>(size[0]));
  out->set_width(static_cast<uint32_t>(size[1]));
}

// A spec may have a zero or an empty text for the default, a file may not.

// Source: Text or Tokens.
template <typename Source>
void RefuseZeroEnd(const Section& windows, const Source& source) {
  if (source.end() != 0) return;
  windows.Fail("end",
               absl::StrCat("expected more than begin, which is ", source.begin(), ", got 0"));
}

void ReadSource(const Section& source, DataSource* out) {
  if (out->has_webdataset()) ReadSize(source.Child("webdataset"), out->mutable_webdataset());
  if (out->has_csv() && out->csv().separator().empty())
    source.Child("csv").Fail("separator", "expected one character, got \"\"");
  if (out->has_text()) RefuseZeroEnd(source.Child("text"), out->text());
  if (out->has_tokens()) RefuseZeroEnd(source.Child("tokens"), out->tokens());
}

}  // namespace

Field DataField() {
  return Group(
      "data", T::kMap, "what to train and test on",
      {
          DataSourceField("train", "training samples", true),
          DataSourceField("test", "test samples, for evaluation", false),
          Group("normalize", T::kMap, "(x - mean) / std per channel; bytes become 0..1 first",
                {Leaf("mean", T::kNumberList, "", "one, or one per channel", true),
                 Leaf("std", T::kNumberList, "", "one, or one per channel", true)}),
          Group("augment", T::kMap, "of training images, drawn from (seed, epoch, sample)",
                {Integer("cropPadding", {0, kImageSideMax}, "0",
                         "pads by so many black pixels, then cuts out a sample at random"),
                 Leaf("horizontalFlip", T::kBoolean, "false",
                      "mirrors every other image, at random")}),
          Into("sample_shape", InRange({1, limits::kTensorElementsMax},
                                       Leaf("shape", T::kNumberList, "",
                                            "reshapes a sample: [1, 8, 8] for 64 columns"))),
          Group("loading", T::kMap, "how a worker reads ahead",
                {ZeroIsNone(
                     Integer("threads", {1, kLoadingThreadsMax}, "1", "that decode and gather")),
                 ByHand(Integer("readAheadMiB", {1, 1 << 20}, "64",
                                "of batches made and not yet taken"))}),
      },
      true);
}

void ReadData(const Section& data, JobSpec* out) {
  ReadSource(data.Child("train"), out->mutable_train());
  if (data.Has("test")) ReadSource(data.Child("test"), out->mutable_test());
  if (!data.Has("loading")) return;
  const Section loading = data.Child("loading");
  const int64_t mib = loading.Has("readAheadMiB") ? *AsInteger(loading.node()["readAheadMiB"]) : 64;
  out->mutable_loading()->set_read_ahead_bytes(static_cast<uint64_t>(mib) << 20);
}

}  // namespace starling::config
