#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/data_digest.h"
#include "worker/data/data_set.h"

namespace starling {
namespace {

bool WantsProbabilities(const JobSpec& spec) {
  const auto& nodes = spec.model().nodes();
  const std::string& loss = nodes.empty() ? spec.model_source().loss() : nodes.rbegin()->op();
  return loss == "binary_cross_entropy";
}

absl::StatusOr<std::shared_ptr<const DataSet>> OpenPart(const char* part, const DataSource& source,
                                                        const JobSpec& spec, const Augment& augment,
                                                        const DataLimits& limits) {
  DataSetOptions options;
  options.sample_shape.assign(spec.sample_shape().begin(), spec.sample_shape().end());
  options.classes = spec.model().classes();
  options.probabilities = WantsProbabilities(spec);
  options.augment = augment;
  options.limits = limits;
  auto data = DataSet::Open(source, spec.normalize(), options);
  if (data.ok()) return data;
  return Prefixed(part, data.status());
}

std::string TypeText(ElementType type) { return type == INT32 ? "int32" : "float32"; }

std::string Text(const std::vector<int64_t>& shape, ElementType type) {
  return absl::StrCat(TypeText(type), " ", ShapeText(shape));
}

// Whether `model` accepts `data`; the model's labels are checked where they are resolved.
absl::Status CheckInput(const Value& model, const SampleFormat& data) {
  const std::vector<int64_t> wanted(model.shape().begin(), model.shape().end());
  const ElementType type = model.type() == INT32 ? INT32 : FLOAT32;
  if (wanted == data.shape && type == data.type) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.train: samples are ",
                                                 Text(data.shape, data.type),
                                                 ", and the model takes ", Text(wanted, type)));
}

absl::Status CheckAlike(const SampleFormat& train, const SampleFormat& test) {
  if (test.shape != train.shape || test.type != train.type) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.test: samples are ", Text(test.shape, test.type),
                     ", and those of data.train are ", Text(train.shape, train.type)));
  }
  if (test.label_shape != train.label_shape || test.label_type != train.label_type) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.test: labels are ", Text(test.label_shape, test.label_type),
                     ", and those of data.train are ", Text(train.label_shape, train.label_type)));
  }
  return absl::OkStatus();
}

// The number of outputs that the job itself requests; 0: as many as the data has classes.
int64_t ClassesOfModel(const JobSpec& spec) {
  int64_t classes = spec.model().classes();
  const ModelSource& source = spec.model_source();
  if (const auto it = source.arguments().find("classes"); it != source.arguments().end())
    classes = std::max(classes, it->second.i());
  if (source.layers().empty()) return classes;
  const auto& last = source.layers().rbegin()->attributes();
  const auto outputs = last.find("out_features");
  return outputs == last.end() ? classes : std::max(classes, outputs->second.i());
}

// Classes come from the training set: a label that occurs only in the test set is never learned,
// and most likely wrong.
absl::Status CheckTestLabels(const DataSet& train, const DataSet& test, const JobSpec& spec,
                             Inspection* out) {
  constexpr size_t kNamedMax = 5;
  const int64_t classes = std::max(train.classes(), ClassesOfModel(spec));
  const std::map<int32_t, int64_t> known = train.FirstOfLabels();
  size_t unknown = 0;
  for (const auto& [label, id] : test.FirstOfLabels()) {
    if (known.contains(label)) continue;
    const std::string what = absl::StrCat("data.test: ", test.PlaceOf(id), " has label ", label,
                                          ", which no sample of data.train has");
    if (label >= classes) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": expected less than ", classes,
                       ", as data.train has so many classes: correct it; "
                       "or, if it is meant, list the classes (csv.classes, webdataset.classes) or "
                       "give the model "
                       "that many outputs"));
    }
    if (++unknown <= kNamedMax)
      out->add_warnings(absl::StrCat(what, " and the model cannot learn"));
  }
  if (unknown > kNamedMax) {
    out->add_warnings(absl::StrCat("data.test: ", unknown, " such labels in all"));
  }
  return absl::OkStatus();
}

void Describe(const DataSet& train, Inspection* out) {
  const SampleFormat& format = train.format();
  out->set_train_samples(train.samples());
  out->mutable_sample_shape()->Add(format.shape.begin(), format.shape.end());
  out->set_sample_type(format.type);
  out->mutable_label_shape()->Add(format.label_shape.begin(), format.label_shape.end());
  out->set_label_type(format.label_type);
  out->set_classes(format.classes);
  out->set_vocabulary(format.vocabulary);
}

// Reads the first images and reports corrupt ones.
absl::Status Probe(const char* part, const DataSet& data, const DataLimits& limits,
                   Inspection* out) {
  STARLING_RETURN_IF_ERROR(Prefixed(part, data.Probe(limits.probe_bytes_max)));
  const CorruptSamples corrupt = data.corrupt();
  for (const std::string& name : corrupt.names)
    out->add_warnings(absl::StrCat(part, ": corrupt image, not used: ", name));
  if (corrupt.count > corrupt.names.size()) {
    out->add_warnings(absl::StrCat(part, ": ", corrupt.count, " corrupt images in all so far"));
  }
  return absl::OkStatus();
}

// As the job's workers compute it: they open the test set if it is evaluated.
absl::Status AddDigest(const JobSpec& spec, const DataSet& train, const DataSet* test,
                       Inspection* out) {
  if (spec.evaluate().every_epochs() == 0) test = nullptr;
  STARLING_ASSIGN_OR_RETURN(const uint64_t digest, DataDigest(train, test, spec.seed()));
  out->set_data_digest(digest);
  return absl::OkStatus();
}

absl::Status Inspect(const JobSpec& spec, const DataLimits& limits, Inspection* out) {
  STARLING_ASSIGN_OR_RETURN(const auto train,
                            OpenPart("data.train", spec.train(), spec, spec.augment(), limits));
  Describe(*train, out);
  if (spec.has_model()) STARLING_RETURN_IF_ERROR(CheckInput(spec.model().input(), train->format()));
  STARLING_RETURN_IF_ERROR(Probe("data.train", *train, limits, out));
  if (!spec.has_test()) return AddDigest(spec, *train, nullptr, out);
  STARLING_ASSIGN_OR_RETURN(const auto test,
                            OpenPart("data.test", spec.test(), spec, Augment(), limits));
  STARLING_RETURN_IF_ERROR(CheckAlike(train->format(), test->format()));
  STARLING_RETURN_IF_ERROR(Probe("data.test", *test, limits, out));
  out->set_test_samples(test->samples());
  if (train->format().vocabulary == 0) {
    STARLING_RETURN_IF_ERROR(CheckTestLabels(*train, *test, spec, out));
  } else {
    out->set_classes(std::max(train->classes(), test->classes()));
    out->set_vocabulary(std::max(train->format().vocabulary, test->format().vocabulary));
  }
  return AddDigest(spec, *train, test.get(), out);
}

}  // namespace

Inspection InspectData(const JobSpec& spec, const DataLimits& limits) {
  Inspection out;
  const absl::Status status = Inspect(spec, limits, &out);
  if (!status.ok()) out.set_error(std::string(status.message()));
  return out;
}

}  // namespace starling
