#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/data/data_set.h"

namespace starling {
namespace {

absl::StatusOr<std::shared_ptr<const DataSet>> OpenPart(const char* part, const DataSource& source,
                                                        const JobSpec& spec,
                                                        const DataLimits& limits) {
  DataSetOptions options;
  options.sample_shape.assign(spec.sample_shape().begin(), spec.sample_shape().end());
  options.classes = spec.model().classes();
  options.limits = limits;
  auto data = DataSet::Open(source, spec.normalize(), options);
  if (data.ok()) return data;
  return absl::Status(data.status().code(), absl::StrCat(part, ": ", data.status().message()));
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status Inspect(const JobSpec& spec, const DataLimits& limits, Inspection* out) {
  STARLING_ASSIGN_OR_RETURN(const auto train, OpenPart("data.train", spec.train(), spec, limits));
  out->set_train_samples(train->samples());
  out->mutable_sample_shape()->Add(train->sample_shape().begin(), train->sample_shape().end());
  out->set_classes(train->classes());
  if (spec.has_model()) {
    const std::vector<int64_t> wanted(spec.model().input().shape().begin(),
                                      spec.model().input().shape().end());
    if (wanted != train->sample_shape()) {
      return absl::InvalidArgumentError(absl::StrCat("data.train: samples are ",
                                                     ShapeText(train->sample_shape()),
                                                     ", and the model takes ", ShapeText(wanted)));
    }
  }
  if (!spec.has_test()) return absl::OkStatus();
  STARLING_ASSIGN_OR_RETURN(const auto test, OpenPart("data.test", spec.test(), spec, limits));
  if (test->sample_shape() != train->sample_shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.test: samples are ", ShapeText(test->sample_shape()),
                     ", and those of data.train are ", ShapeText(train->sample_shape())));
  }
  out->set_test_samples(test->samples());
  out->set_classes(std::max(train->classes(), test->classes()));
  return absl::OkStatus();
}

}  // namespace

Inspection InspectData(const JobSpec& spec, const DataLimits& limits) {
  Inspection out;
  const absl::Status status = Inspect(spec, limits, &out);
  if (!status.ok()) out.set_error(std::string(status.message()));
  return out;
}

}  // namespace starling
