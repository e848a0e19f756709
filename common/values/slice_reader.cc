#include "common/values/slice_reader.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/base/xxh3.h"
#include "common/sync/mutex.h"

namespace starling {
namespace {

constexpr size_t kSlicesInMemory = 16;
constexpr absl::Duration kStopPoll = absl::Milliseconds(100);

std::string ShardText(const View& view) {
  return absl::StrCat("shard ", view.primary(), " at ", view.primary_address());
}

// Slices that have arrived, from all shards.
class Arrivals {
 public:
  explicit Arrivals(const Layout& layout) : layout_(layout) {}

  void OnValue(const FrameHeader& header, const ReceivedPayload& payload) {
    const uint32_t slice = header.key.slice.value;
    if (slice >= layout_.slices.size() ||
        payload.size() != 4 * uint64_t{layout_.slices[slice].elements}) {
      return OnError(
          absl::DataLossError(absl::StrCat("slice ", slice, " came with ", payload.size(),
                                           " bytes: the shard lays the model out in another way")));
    }
    std::vector<float> values(layout_.slices[slice].elements);
    payload.CopyTo(values.data());
    if (XXH3_64bits(values.data(), payload.size()) != header.digest) {
      return OnError(absl::DataLossError(absl::StrCat("slice ", slice, " was damaged on its way")));
    }
    MutexLock lock(&mutex_);
    values_[slice] = std::move(values);
    arrived_.SignalAll();
  }

  void OnError(const absl::Status& status) {
    MutexLock lock(&mutex_);
    error_.Update(status);
    arrived_.SignalAll();
  }

  // kDeadlineExceeded with an empty message if it did not arrive.
  absl::StatusOr<std::vector<float>> Take(SliceId slice, absl::Time deadline,
                                          const std::atomic<bool>* stop) {
    MutexLock lock(&mutex_);
    while (error_.ok() && values_.count(slice.value) == 0) {
      if (stop != nullptr && *stop) return absl::CancelledError("stopped while it read");
      if (MonotonicNow() >= deadline) return absl::DeadlineExceededError("");
      arrived_.WaitWithDeadline(
          &mutex_, stop == nullptr ? deadline : std::min(deadline, MonotonicNow() + kStopPoll));
    }
    STARLING_RETURN_IF_ERROR(error_);
    auto node = values_.extract(slice.value);
    return std::move(node.mapped());
  }

 private:
  const Layout& layout_;
  Mutex mutex_;
  CondVar arrived_;
  std::map<uint32_t, std::vector<float>> values_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

class Handler : public StreamHandler {
 public:
  Handler(std::string shard, std::shared_ptr<Arrivals> arrivals)
      : shard_(std::move(shard)), arrivals_(std::move(arrivals)) {}

  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    if (header.type == FrameType::kValue) return arrivals_->OnValue(header, payload);
    if (header.type != FrameType::kError) return;
    std::string text(payload.size(), '\0');
    payload.CopyTo(text.data());
    arrivals_->OnError(absl::AbortedError(
        absl::StrCat(shard_, " refused slice ", header.key.slice.value, ": ", text)));
  }
  void OnDown(const absl::Status& status) override {
    arrivals_->OnError(
        absl::UnavailableError(absl::StrCat(shard_, ": ", std::string(status.message()))));
  }

 private:
  const std::string shard_;
  const std::shared_ptr<Arrivals> arrivals_;
};

// The pull of one slice.
FrameHeader Pull(const JobReply& job, const Slice& slice, const View& view,
                 const ReadPoint& point) {
  FrameHeader header;
  header.type = FrameType::kPull;
  header.flags = frame_flags::kReader;
  header.key.run = {JobUid(job.status().uid()), job.status().era()};
  header.key.slice = slice.id;
  const auto version = point.versions.find(slice.partition.value);
  if (version != point.versions.end() && !point.epoch) {
    header.flags |= frame_flags::kVersion;
    header.clock = static_cast<Clock>(version->second);
  }
  if (point.epoch) header.key.work = {.purpose = WorkPurpose::kEvaluate, .epoch = *point.epoch};
  header.partition = slice.partition;
  header.view = ViewNumber(view.number());
  header.roster = RosterNumber(job.status().roster());
  header.request_id = slice.id.value + 1;
  return header;
}

}  // namespace

absl::StatusOr<ReadPoint> ValuesAtTheEnd(const JobReply& job) {
  const std::string& name = job.status().name();
  if (job.values_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is ", JobState_Name(job.status().state()),
                     " and has no parameters (see: starling describe job ", name, ")"));
  }
  ReadPoint point;
  std::map<std::string, std::vector<uint32_t>> gone;  // partitions by cause of loss
  std::set<std::string> unknown;                      // shards
  for (const PartitionValues& values : job.values()) {
    if (!values.gone().empty()) {
      gone[values.gone()].push_back(values.partition());
    } else if (values.unknown()) {
      for (const View& view : job.views()) {
        if (view.partition() == values.partition()) unknown.insert(ShardText(view));
      }
    } else if (values.has_version()) {
      point.versions[values.partition()] = values.version();
    }
  }
  if (!gone.empty()) {
    std::vector<std::string> texts;
    for (const auto& [how, partitions] : gone) {
      texts.push_back(absl::StrCat("partition", partitions.size() == 1 ? " " : "s ",
                                   absl::StrJoin(partitions, ", "), " of ", job.values_size(), ": ",
                                   how));
    }
    return absl::DataLossError(absl::StrCat(
        "the values of ", name, " are gone: ", absl::StrJoin(texts, "; "),
        ". `starling submit --from ", name,
        " --replace` goes on from its newest checkpoint, if it has one; else submit it again"));
  }
  if (unknown.empty()) return point;
  return absl::UnavailableError(absl::StrCat(
      absl::StrJoin(unknown, ", "), unknown.size() == 1 ? " has" : " have",
      " not told the coordinator of ", name, "'s end yet: try again, or see starling get shards"));
}

absl::Status ReadSlices(StreamClient& client, const JobReply& job, const Layout& layout,
                        const ReadPoint& point, absl::Time deadline, const SliceConsumer& consume,
                        const std::atomic<bool>* stop) {
  std::map<uint32_t, const View*> views;
  for (const View& view : job.views()) views[view.partition()] = &view;
  for (uint32_t partition = 0; partition < layout.partitions.size(); ++partition) {
    if (views.count(partition) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("no shard holds partition ", partition, " of the job"));
    }
  }
  const auto arrivals = std::make_shared<Arrivals>(layout);
  std::map<std::string, std::shared_ptr<FrameStream>> streams;  // by address
  const auto request = [&](const Slice& slice) {
    const View& view = *views[slice.partition.value];
    auto& stream = streams[view.primary_address()];
    if (stream == nullptr) {
      ConnectOptions options{.address = view.primary_address(), .whom = "it"};
      stream = client.Connect(options, std::make_shared<Handler>(ShardText(view), arrivals));
    }
    return stream->Send(Pull(job, slice, view, point));
  };

  absl::Status status;
  size_t requested = 0;
  for (const Slice& slice : layout.slices) {
    for (; status.ok() && requested < layout.slices.size() &&
           requested < slice.id.value + kSlicesInMemory;
         ++requested) {
      status = request(layout.slices[requested]);
    }
    if (!status.ok()) break;
    const auto values = arrivals->Take(slice.id, deadline, stop);
    status = values.ok() ? consume(slice, *values) : values.status();
    if (absl::IsDeadlineExceeded(status)) {
      status = absl::DeadlineExceededError(absl::StrCat("waited too long for slice ",
                                                        slice.id.value, " from ",
                                                        ShardText(*views[slice.partition.value])));
    }
    if (!status.ok()) break;
  }
  for (auto& [address, stream] : streams) stream->Close(absl::OkStatus());
  return status;
}

}  // namespace starling
