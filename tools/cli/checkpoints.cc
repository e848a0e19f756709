// starling checkpoint: create, list and delete through the coordinator; verify and export what lies
// in a checkpoint root, read without a cluster.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/reader.h"
#include "common/placement/layout.h"
#include "common/protocol/limits.h"
#include "common/safetensors/safetensors.h"
#include "common/values/model_file.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/local.h"
#include "tools/cli/output.h"
#include "tools/cli/say_while.h"
#include "tools/cli/verbs.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kSayReadEvery = absl::Seconds(10);

// ---- Through the coordinator ----

absl::StatusOr<int> RunCreate(const std::string& job, Client& client, Context& context) {
  CreateCheckpointRequest request;
  request.set_name(job);
  request.set_nonce(context.random());
  STARLING_ASSIGN_OR_RETURN(const CreateCheckpointReply reply,
                            SayWhile(absl::StrCat(job, ": the checkpoint has been under way"),
                                     context, [&] { return client.CreateCheckpoint(request); }));
  const CheckpointInfo& made = reply.checkpoint();
  context.err << job << ": step " << CountText(made.step()) << ", " << BytesText(made.bytes())
              << "; it stays until: starling checkpoint delete " << made.id() << "\n";
  context.out << made.id() << "\n";
  return kExitOk;
}

struct ListOptions {
  std::string job;  // empty: of all
  Format format = Format::kTable;
};

absl::StatusOr<int> RunList(const ListOptions& options, Client& client, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const ListCheckpointsReply reply, client.ListCheckpoints(options.job));
  if (options.format != Format::kTable) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const CheckpointInfo& info : reply.checkpoints()) all.push_back(ToJson(info));
    context.out << FormatText(options.format, all);
    return kExitOk;
  }
  Rows rows = {{"ID", "JOB", "STEP", "EPOCHS", "SIZE", "CREATED", "KEPT"}};
  for (const CheckpointInfo& info : reply.checkpoints()) {
    rows.push_back({info.id(), info.job(), CountText(info.step()), CountText(info.epoch()),
                    BytesText(info.bytes()), info.created(),
                    info.asked_for() ? "until deleted" : "by its job's rule"});
  }
  context.out << TableText(rows);
  return kExitOk;
}

// Continues after one that cannot be deleted, and returns the first failure's exit code.
absl::StatusOr<int> RunDeleteCheckpoints(const std::vector<std::string>& ids, Client& client,
                                         Context& context) {
  int exit_code = kExitOk;
  for (const std::string& id : ids) {
    const absl::Status status = client.DeleteCheckpoint(id);
    if (status.ok()) {
      context.err << "deleted checkpoint " << id << "\n";
    } else if (const int code = Fail(status, context); exit_code == kExitOk) {
      exit_code = code;
    }
  }
  return exit_code;
}

// ---- In a folder ----

struct CheckpointOptions {
  std::string id;
  std::string root;  // empty: the local cluster's
  std::string file;  // export
};

// A disk's error is no coordinator that is not reached.
absl::Status FromDisk(const absl::Status& status) {
  return absl::IsNotFound(status) ? status : Local(status);
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenCheckpoint(const CheckpointOptions& options,
                                                                 const Context& context) {
  const std::optional<CheckpointId> id = ParseCheckpointId(options.id);
  if (!id) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a checkpoint, as in 00c0ffee00c0ffee-12-3, the name of its folder, "
                     "got \"",
                     options.id, "\""));
  }
  std::string root = options.root;
  if (root.empty()) {
    STARLING_ASSIGN_OR_RETURN(root, LocalCheckpointRoot(context));
  }
  auto disk = OpenCheckpointDisk(root);
  if (!disk.ok()) {
    return Local(Prefixed(options.root.empty() ? "the local cluster's checkpoints (others: "
                                                 "--checkpoint-root DIR)"
                                               : "--checkpoint-root",
                          disk.status()));
  }
  auto reader = CheckpointReader::Open(*std::move(disk), *id, std::nullopt);
  if (!reader.ok()) return FromDisk(reader.status());
  return reader;
}

// "0000000000c0ffee-12-3 (digits, step 27)"
std::string NameOf(const CheckpointManifest& manifest) {
  return absl::StrCat(manifest.id(), " (", manifest.job().spec().name(), ", step ",
                      CountText(manifest.step()), ")");
}

absl::StatusOr<int> RunVerify(const CheckpointOptions& options, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const auto reader, OpenCheckpoint(options, context));
  const CheckpointManifest& manifest = reader->manifest();
  uint64_t total = 0;
  for (const CheckpointFile& file : manifest.files()) total += file.bytes();
  absl::Time said = context.now();
  const absl::Status status = reader->VerifyAll([&](uint64_t read) {
    if (context.now() - said < kSayReadEvery) return true;
    said = context.now();
    context.err << BytesText(read) << " of " << BytesText(total) << " are whole\n" << std::flush;
    return true;
  });
  STARLING_RETURN_IF_ERROR(FromDisk(status));
  context.out << NameOf(manifest) << ": whole, " << BytesText(total) << " in "
              << manifest.files_size() << (manifest.files_size() == 1 ? " file\n" : " files\n");
  return kExitOk;
}

// All parameters, one behind the other, at most a slice of them in memory.
absl::Status CopyValues(const CheckpointReader& reader,
                        const std::vector<safetensors::TensorInfo>& tensors,
                        safetensors::Writer* writer) {
  std::vector<float> values;
  for (const safetensors::TensorInfo& tensor : tensors) {
    STARLING_ASSIGN_OR_RETURN(const uint64_t bytes,
                              safetensors::TensorBytes(tensor.dtype, tensor.shape));
    const uint64_t elements = bytes / sizeof(float);
    for (uint64_t begin = 0; begin < elements; begin += values.size()) {
      values.resize(std::min<uint64_t>(limits::kSliceElementsMax, elements - begin));
      STARLING_RETURN_IF_ERROR(
          reader.Read(tensor.name, begin, BlockPart::kValue, absl::MakeSpan(values)));
      STARLING_RETURN_IF_ERROR(writer->AppendFloats(values));
    }
  }
  return writer->Finish();
}

// The same file as `starling export` writes of the job at that step.
absl::StatusOr<int> RunExportCheckpoint(const CheckpointOptions& options, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const auto reader, OpenCheckpoint(options, context));
  const CheckpointManifest& manifest = reader->manifest();
  JobReply job;
  *job.mutable_spec() = manifest.job().spec();
  job.mutable_status()->set_name(job.spec().name());
  job.mutable_status()->set_step(manifest.step());
  STARLING_ASSIGN_OR_RETURN(const Layout layout, MakeLayout(job.spec()));
  const auto tensors = ModelTensors(job.spec().model(), layout);
  auto writer = safetensors::Writer::Create(options.file, tensors, ModelMetadata(job, {}));
  STARLING_RETURN_IF_ERROR(Local(writer.status()));
  STARLING_RETURN_IF_ERROR(Local(CopyValues(*reader, tensors, &*writer)));
  context.err << "wrote " << CountText(layout.elements) << " parameters of checkpoint "
              << NameOf(manifest) << " to " << options.file << "\n";
  return kExitOk;
}

}  // namespace

void AddCheckpoints(CommandLine& line) {
  CLI::App* const group = line.Group("checkpoint", "what jobs can be started from again");
  const auto [create, job] = line.Verb<std::string>(
      "create", "take one of a job that trains; prints its id", RunCreate, group);
  create->add_option("JOB", *job, "the job")->required()->check(CheckUtf8);
  const auto [list, listed] =
      line.Verb<ListOptions>("list", "those of a job, or of all; newest first", RunList, group);
  list->add_option("JOB", listed->job, "the job (else all)")->check(CheckUtf8);
  AddFormat(list, &listed->format);
  const auto [remove, ids] =
      line.Verb<std::vector<std::string>>("delete", "remove them", RunDeleteCheckpoints, group);
  remove->add_option("ID", *ids, "the checkpoints")->required()->check(CheckUtf8);
  AddRestore(line, group);
  const auto add = [](CLI::App* verb, CheckpointOptions* options) {
    verb->add_option("ID", options->id, "the checkpoint: the name of its folder")
        ->required()
        ->check(CheckUtf8);
    verb->add_option("--checkpoint-root", options->root,
                     "the folder that has it (else the local cluster's)");
  };
  const auto [verify, verified] = line.Verb<CheckpointOptions>(
      "verify", "read every byte of one, and compare all digests", RunVerify, group);
  add(verify, verified);
  const auto [write, written] = line.Verb<CheckpointOptions>(
      "export", "write its parameters to a safetensors file", RunExportCheckpoint, group);
  add(write, written);
  write->add_option("-o,--output", written->file, "the file")->required();
}

}  // namespace starling::cli
