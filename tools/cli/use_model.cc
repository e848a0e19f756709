#include "tools/cli/use_model.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/safetensors/safetensors.h"
#include "server/coordinator/core/resolve_model.h"
#include "tools/cli/job_values.h"
#include "tools/cli/read_job_file.h"

namespace starling::cli {
namespace {

constexpr uint64_t kClassesMax = 1 << 24;
constexpr int kThreadsMax = 16;

// What a worker would find in the job's data.
Inspection Guess(const JobSpec& spec, std::vector<int64_t> sample_shape, uint64_t classes) {
  Inspection out;
  out.set_train_samples(1);
  out.set_classes(classes);
  const DataSource& train = spec.train();
  const bool tokens = train.has_text() || train.has_tokens();
  if (tokens) {
    const int64_t context = train.has_text() ? train.text().context() : train.tokens().context();
    sample_shape = {context};
    out.add_label_shape(context);
    out.set_sample_type(INT32);
    out.set_vocabulary(classes);
  } else if (train.has_idx() && sample_shape.size() == 2) {
    sample_shape.insert(sample_shape.begin(), 1);
  } else if (train.has_csv() && train.csv().label_type() == DataSource::Csv::LABEL_NUMBER) {
    out.add_label_shape(std::max(1, train.csv().label_size()));
    out.set_label_type(FLOAT32);
    out.set_classes(0);
  }
  for (int64_t dim :
       spec.sample_shape_size() > 0
           ? std::vector<int64_t>(spec.sample_shape().begin(), spec.sample_shape().end())
           : sample_shape) {
    out.add_sample_shape(dim);
  }
  return out;
}

// The numbers of classes that the model may have: sizes that occur in the file.
std::set<uint64_t> Candidates(const JobSpec& spec, const safetensors::Reader& file) {
  if (spec.train().has_text()) return {256};
  if (spec.train().has_tokens() && spec.train().tokens().vocabulary() > 0)
    return {spec.train().tokens().vocabulary()};
  std::set<uint64_t> out;
  for (const safetensors::TensorInfo& tensor : file.header().tensors) {
    if (!tensor.shape.empty() && tensor.shape[0] >= 1 && tensor.shape[0] <= kClassesMax)
      out.insert(tensor.shape[0]);
  }
  if (out.empty()) out.insert(1);
  return out;
}

// The model that the job file describes, with the number of classes that fits best.
absl::StatusOr<SavedModel> Describe(const JobSpec& spec, const std::vector<int64_t>& sample_shape,
                                    const safetensors::Reader& file) {
  absl::StatusOr<SavedModel> best = absl::InvalidArgumentError("the file has no tensors");
  size_t fewest = 0;
  for (uint64_t classes : Candidates(spec, file)) {
    JobSpec resolved = spec;
    resolved.mutable_model_source()->clear_init();  // the given file has the values
    absl::Status status = coordinator::ResolveModel(Guess(spec, sample_shape, classes), resolved);
    auto model = status.ok() ? MakeModel(resolved) : absl::StatusOr<SavedModel>(status);
    if (!model.ok()) {
      if (!best.ok()) best = std::move(model);
      continue;
    }
    const size_t mismatches = Mismatches(file, model->resolved).size();
    if (!best.ok() || mismatches < fewest) {
      best = std::move(model);
      fewest = mismatches;
    }
    if (mismatches == 0) break;
  }
  return best;
}

absl::StatusOr<SavedModel> FromFile(const ModelChoice& choice,
                                    const std::vector<int64_t>& sample_shape,
                                    const Context& context) {
  STARLING_ASSIGN_OR_RETURN(const safetensors::Reader file,
                            safetensors::Reader::Open(choice.model));
  if (choice.job_file.empty()) {
    auto model = LoadModel(file);
    if (!model.ok()) return Prefixed(choice.model, model.status());
    return model;
  }
  // The location of its data does not matter here.
  const Environment environment = [&](const std::string& name) {
    const auto value = context.environment(name);
    return value ? value : std::optional<std::string>(absl::StrCat("/", name));
  };
  STARLING_ASSIGN_OR_RETURN(const JobSpec spec, ReadJobFile(choice.job_file, {}, environment));
  auto model = Describe(spec, sample_shape, file);
  if (!model.ok()) return Prefixed(choice.job_file, model.status());
  STARLING_RETURN_IF_ERROR(Prefixed(choice.model, ReadValues(file, &*model)));
  return model;
}

// A job's layout depends on its optimizer's groups, too, so each parameter is moved separately.
void Rearrange(const std::vector<float>& from, const Layout& layout, SavedModel* model) {
  model->values.resize(model->layout.elements);
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const ParameterPlace& place = layout.parameters[i];
    std::copy_n(
        from.begin() + static_cast<ptrdiff_t>(place.flat_begin), place.elements,
        model->values.begin() + static_cast<ptrdiff_t>(model->layout.parameters[i].flat_begin));
  }
}

absl::StatusOr<SavedModel> FromJob(const std::string& name, const CommandLine& line,
                                   Context& context) {
  STARLING_ASSIGN_OR_RETURN(const auto client, line.Connect(context));
  SavedModel model;
  const auto collect = [&](const JobReply& job, const ReadPoint& point, const Layout& layout,
                           const auto& read) -> absl::Status {
    STARLING_ASSIGN_OR_RETURN(model, MakeModel(job.spec()));
    std::vector<float> flat(layout.elements);
    STARLING_RETURN_IF_ERROR(read([&](const Slice& slice, absl::Span<const float> values) {
      std::copy(values.begin(), values.end(),
                flat.begin() + static_cast<ptrdiff_t>(slice.flat_begin));
      return absl::OkStatus();
    }));
    Rearrange(flat, layout, &model);
    context.err << "using the parameters of " << name << PointText(point) << "\n";
    return absl::OkStatus();
  };
  STARLING_RETURN_IF_ERROR(ReadJobValues(name, *client, context, collect));
  return model;
}

// A job's name has neither dots nor slashes.
bool IsFile(const std::string& model) { return model.find_first_of("./") != std::string::npos; }

}  // namespace

void AddModelChoice(CLI::App* verb, ModelChoice* choice) {
  verb->add_option("MODEL", choice->model,
                   "a job, or a safetensors file (whose name has a dot or a slash)")
      ->required();
  verb->add_option("-f,--file", choice->job_file,
                   "the job file, for a file without an embedded model");
  verb->add_option("--threads", choice->threads, "that compute (else one per core)")
      ->check(CLI::Range(1, 256));
}

absl::StatusOr<SavedModel> UseModel(const ModelChoice& choice,
                                    const std::vector<int64_t>& sample_shape,
                                    const CommandLine& line, Context& context) {
  if (IsFile(choice.model)) return FromFile(choice, sample_shape, context);
  if (!choice.job_file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(choice.model, " is a job, which knows its model: leave out -f ",
                     choice.job_file, ", or give a file (./", choice.model, ")"));
  }
  return FromJob(choice.model, line, context);
}

int ComputeThreads(int asked) {
  if (asked > 0) return asked;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreadsMax);
}

}  // namespace starling::cli
