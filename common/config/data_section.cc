#include "common/config/data_section.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/config/fields.h"
#include "common/config/paths.h"
#include "common/protocol/limits.h"

namespace starling::config {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kContextMax = 1 << 24;
constexpr int64_t kLoadingThreadsMax = 64;
constexpr int64_t kImageSideMax = 8192;
constexpr int64_t kCorruptMax = int64_t{1} << 30;

Field ContextField() { return Leaf("context", T::kInteger, "", "tokens in a sample", true); }

std::vector<Field> WindowFields() {
  return {Leaf("stride", T::kInteger, "", "tokens from one sample to the next; by default context"),
          Leaf("begin", T::kNumber, "0", "share of the file where this part begins"),
          Leaf("end", T::kNumber, "1", "share of the file where it ends")};
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
                {Leaf("images", T::kString, "", "path of the images", true),
                 Leaf("labels", T::kString, "", "path of the labels", true)}),
          Group(
              "csv", T::kMap, "rows of values, the last column a class label; also .gz",
              {Leaf("path", T::kString, "", "path of the file", true),
               Leaf("header", T::kBoolean, "false",
                    "the first line names the columns; without, they are 1, 2, ..."),
               Leaf("separator", T::kString, "\",\"", "one character"),
               Leaf("label", T::kStringList, "", "columns that are the label; by default the last"),
               Leaf("features", T::kStringList, "",
                    "columns that are the sample, in this order; by default all others"),
               Leaf("ignore", T::kStringList, "", "columns that are neither"),
               Leaf("labelType", T::kString, "class",
                    "class: one integer or name; number: to be fitted"),
               Leaf("classes", T::kStringList, "",
                    "names of the classes, in order; without, labels are integers"),
               Leaf("part", T::kString, "all", "all, train or holdout"),
               Leaf("holdoutFraction", T::kNumber, "0", "share of each class that `holdout` takes"),
               Leaf("holdoutSeed", T::kInteger, "0", "chooses the rows held out")}),
          Group(
              "cifar", T::kMap, "CIFAR's binary edition, also .gz",
              {Leaf("files", T::kStringList, "", "paths of the batches, in order", true),
               Leaf("labels", T::kString, "cifar10", "cifar10; or of CIFAR-100: fine or coarse")}),
          Group(
              "webdataset", T::kMap, "tar files of JPEG images and labels",
              {Leaf("shards", T::kStringList, "", "paths of the tar files, in order", true),
               Leaf("image", T::kString, "jpg", "what follows a sample's name where its image is"),
               Leaf("label", T::kString, "cls", "and where its label is"),
               Leaf("classes", T::kString, "",
                    "path of a file of class names; without, labels are numbers"),
               Leaf("size", T::kNumberList, "",
                    "[height, width] of a sample; by default the first image's"),
               Leaf("fit", T::kString, "exact",
                    "images of another size: exact (an error), crop or resize"),
               Leaf("gray", T::kBoolean, "false", "one channel instead of three"),
               Leaf("corruptMax", T::kInteger, "100",
                    "corrupt images that one worker may meet; one more fails the job")}),
          WindowsField("text", "bytes of a plain text; labels are the next bytes",
                       {Leaf("path", T::kString, "", "path of the file", true), ContextField()}),
          WindowsField("tokens", "a .bin of nanoGPT or llm.c; labels are the next tokens",
                       {Leaf("path", T::kString, "", "path of the file", true), ContextField(),
                        Leaf("vocabulary", T::kInteger, "", "tokens are below", true)}),
          Group("counter", T::kMap, "sample i is the number i (for builtin: counter)",
                {Leaf("samples", T::kInteger, "", "how many", true)}),
      },
      required);
}

void ReadCsv(const Section& csv, const JobFileOptions& options, DataSource::Csv* out) {
  out->set_path(ExpandPath(csv, "path", options));
  out->set_header(csv.Boolean("header", false));
  out->set_separator(csv.Text("separator", ","));
  if (out->separator().size() != 1) csv.Fail("separator", "expected one character");
  for (const std::string& name : csv.Texts("label")) out->add_label(name);
  for (const std::string& name : csv.Texts("features")) out->add_features(name);
  for (const std::string& name : csv.Texts("ignore")) out->add_ignore(name);
  const std::string label_type = csv.Text("labelType", "class");
  if (label_type == "number")
    out->set_label_type(DataSource::Csv::LABEL_NUMBER);
  else if (label_type != "class")
    csv.Fail("labelType", absl::StrCat("expected class or number, got \"", label_type, "\""));
  for (const std::string& name : csv.Texts("classes")) out->add_classes(name);
  out->set_holdout_fraction(csv.Number("holdoutFraction", 0, 0, 0.99));
  out->set_holdout_seed(csv.Integer("holdoutSeed", 0, 0, kInt64Max));
  const std::string part = csv.Text("part", "all");
  if (part == "train")
    out->set_part(DataSource::Csv::PART_TRAIN);
  else if (part == "holdout")
    out->set_part(DataSource::Csv::PART_HOLDOUT);
  else if (part != "all")
    csv.Fail("part", absl::StrCat("expected all, train or holdout, got \"", part, "\""));
  if (part != "all" && out->holdout_fraction() == 0) {
    csv.Fail("part", "with part train or holdout, holdoutFraction must be above 0");
  }
}

void ReadCifar(const Section& cifar, const JobFileOptions& options, DataSource::Cifar* out) {
  for (const std::string& path : ExpandPaths(cifar, "files", options)) out->add_files(path);
  const std::string labels = cifar.Text("labels", "cifar10");
  if (labels == "fine")
    out->set_labels(DataSource::Cifar::FINE);
  else if (labels == "coarse")
    out->set_labels(DataSource::Cifar::COARSE);
  else if (labels != "cifar10")
    cifar.Fail("labels", absl::StrCat("expected cifar10, fine or coarse, got \"", labels, "\""));
}

void ReadWebDataset(const Section& web, const JobFileOptions& options,
                    DataSource::WebDataset* out) {
  for (const std::string& path : ExpandPaths(web, "shards", options)) out->add_shards(path);
  out->set_image(web.Text("image", "jpg"));
  out->set_label(web.Text("label", "cls"));
  if (web.Has("classes")) out->set_classes(ExpandPath(web, "classes", options));
  const std::vector<int64_t> size = web.Integers("size", 1, kImageSideMax);
  if (size.size() == 2) {
    out->set_height(size[0]);
    out->set_width(size[1]);
  } else if (web.Has("size")) {
    web.Fail("size", absl::StrCat("expected [height, width], got ", size.size(), " numbers"));
  }
  const std::string fit = web.Text("fit", "exact");
  if (fit == "crop")
    out->set_fit(DataSource::WebDataset::CENTER_CROP);
  else if (fit == "resize")
    out->set_fit(DataSource::WebDataset::RESIZE);
  else if (fit != "exact")
    web.Fail("fit", absl::StrCat("expected exact, crop or resize, got \"", fit, "\""));
  out->set_gray(web.Boolean("gray", false));
  out->set_corrupt_max(web.Integer("corruptMax", 100, 0, kCorruptMax));
}

void ReadAugment(const Section& augment, Augment* out) {
  out->set_crop_padding(augment.Integer("cropPadding", 0, 0, kImageSideMax));
  out->set_horizontal_flip(augment.Boolean("horizontalFlip", false));
}

// Source: Text or Tokens.
template <typename Source>
void ReadWindows(const Section& windows, const JobFileOptions& options, Source* out) {
  out->set_path(ExpandPath(windows, "path", options));
  out->set_context(windows.Integer("context", 1, 1, kContextMax));
  out->set_stride(windows.Integer("stride", 0, 1, std::numeric_limits<int32_t>::max()));
  out->set_begin(windows.Number("begin", 0, 0, 1));
  out->set_end(windows.Number("end", 1, 0, 1));
  if (out->end() <= out->begin()) {
    windows.Fail("end", absl::StrCat("expected more than begin, which is ", out->begin(), ", got ",
                                     out->end()));
  }
}

void ReadSource(const Section& source, const JobFileOptions& options, DataSource* out) {
  if (source.Has("idx")) {
    const Section idx = source.Child("idx");
    out->mutable_idx()->set_images(ExpandPath(idx, "images", options));
    out->mutable_idx()->set_labels(ExpandPath(idx, "labels", options));
  } else if (source.Has("csv")) {
    ReadCsv(source.Child("csv"), options, out->mutable_csv());
  } else if (source.Has("cifar")) {
    ReadCifar(source.Child("cifar"), options, out->mutable_cifar());
  } else if (source.Has("webdataset")) {
    ReadWebDataset(source.Child("webdataset"), options, out->mutable_webdataset());
  } else if (source.Has("text")) {
    ReadWindows(source.Child("text"), options, out->mutable_text());
  } else if (source.Has("tokens")) {
    const Section tokens = source.Child("tokens");
    ReadWindows(tokens, options, out->mutable_tokens());
    out->mutable_tokens()->set_vocabulary(
        tokens.Integer("vocabulary", 2, 2, std::numeric_limits<int32_t>::max()));
  } else if (source.Has("counter")) {
    out->mutable_counter()->set_samples(
        source.Child("counter").Integer("samples", 0, 1, limits::kSamplesMax));
  }
}

void ReadNormalize(const Section& normalize, Normalize* out) {
  for (double mean : normalize.Numbers("mean")) out->add_mean(mean);
  for (double std : normalize.Numbers("std")) {
    if (std <= 0) normalize.Fail("std", absl::StrCat("expected numbers above 0, got ", std));
    out->add_std(std);
  }
  if (out->mean_size() != out->std_size() || out->mean_size() == 0) {
    normalize.Fail("std", absl::StrCat("expected as many numbers as mean, at least one; got ",
                                       out->std_size(), " and ", out->mean_size()));
  }
}

void ReadLoading(const Section& loading, Loading* out) {
  constexpr int64_t kMiB = 1 << 20;
  out->set_threads(loading.Integer("threads", 1, 1, kLoadingThreadsMax));
  out->set_read_ahead_bytes(loading.Integer("readAheadMiB", 64, 1, 1 << 20) * kMiB);
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
                {Leaf("cropPadding", T::kInteger, "0",
                      "pads by so many black pixels, then cuts out a sample at random"),
                 Leaf("horizontalFlip", T::kBoolean, "false",
                      "mirrors every other image, at random")}),
          Leaf("shape", T::kNumberList, "", "reshapes a sample: [1, 8, 8] for 64 columns"),
          Group("loading", T::kMap, "how a worker reads ahead",
                {Leaf("threads", T::kInteger, "1", "that decode and gather"),
                 Leaf("readAheadMiB", T::kInteger, "64", "of batches made and not yet taken")}),
      },
      true);
}

void ReadData(const Section& data, const JobFileOptions& options, JobSpec* out) {
  ReadSource(data.Child("train"), options, out->mutable_train());
  if (data.Has("test")) ReadSource(data.Child("test"), options, out->mutable_test());
  if (data.Has("normalize")) ReadNormalize(data.Child("normalize"), out->mutable_normalize());
  if (data.Has("augment")) ReadAugment(data.Child("augment"), out->mutable_augment());
  for (int64_t dim : data.Integers("shape", 1, limits::kTensorElementsMax))
    out->add_sample_shape(dim);
  if (data.Has("loading")) ReadLoading(data.Child("loading"), out->mutable_loading());
}

}  // namespace starling::config
