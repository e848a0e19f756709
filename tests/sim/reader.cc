#include "tests/sim/reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

// Longer than any pause of a shard, and than a reader takes that holds slices one by one.
constexpr absl::Duration kReadDeadline = absl::Seconds(20);

}  // namespace

// One read, until all slices are here or one failed.
class Reader::Reading : public std::enable_shared_from_this<Reading> {
 public:
  Reading(Reader* reader, const JobReply& job, const Layout& layout, const ReadPoint& point,
          Done done)
      : reader_(reader),
        job_(job),
        layout_(layout),
        point_(point),
        values_{std::vector<ValuesPtr>(layout.slices.size()),
                std::vector<Lsn>(layout.slices.size())},
        done_(std::move(done)) {}

  void Begin(StreamClient& client) {
    std::map<uint32_t, const View*> views;
    for (const View& view : job_.views()) views[view.partition()] = &view;
    for (const Slice& slice : layout_.slices) {
      const auto view = views.find(slice.partition.value);
      if (view == views.end()) {
        return End(absl::FailedPreconditionError(
            absl::StrCat("no shard holds partition ", slice.partition.value)));
      }
      std::shared_ptr<FrameStream>& stream = streams_[view->second->primary_address()];
      if (stream == nullptr) {
        stream = client.Connect({.address = view->second->primary_address(), .whom = "a shard"},
                                std::make_shared<Handler>(shared_from_this()));
      }
      const absl::Status sent = stream->Send(Pull(slice, *view->second));
      if (!sent.ok()) return End(sent);
    }
  }

  // The deadline is over.
  void Expire() {
    if (done_ == nullptr) return;
    std::string missing;
    for (const Slice& slice : layout_.slices) {
      if (values_.slices[slice.id.value] != nullptr) continue;
      absl::StrAppend(&missing, missing.empty() ? "" : ", ", slice.id.value, " (partition ",
                      slice.partition.value, ")");
    }
    End(absl::DeadlineExceededError(absl::StrCat("pulls of slices ", missing,
                                                 " were not answered within ",
                                                 absl::FormatDuration(kReadDeadline))));
  }

  void End(absl::StatusOr<ReadValues> result) {
    const Done done = std::exchange(done_, nullptr);
    if (done == nullptr) return;
    for (const auto& [address, stream] : streams_) stream->Close(absl::CancelledError("read"));
    done(std::move(result));
  }

 private:
  class Handler final : public StreamHandler {
   public:
    explicit Handler(std::shared_ptr<Reading> reading) : reading_(std::move(reading)) {}
    void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
      reading_->OnFrame(header, payload);
    }
    void OnDown(const absl::Status& status) override {
      if (absl::IsResourceExhausted(status)) world().Count("streams closed for their memory");
      reading_->End(absl::UnavailableError(std::string(status.message())));
    }

   private:
    World& world() { return reading_->reader_->cluster_->world(); }

    const std::shared_ptr<Reading> reading_;
  };

  FrameHeader Pull(const Slice& slice, const View& view) const {
    FrameHeader header;
    header.type = FrameType::kPull;
    header.flags = frame_flags::kReader;
    header.key.run = {JobUid(job_.status().uid()), job_.status().era()};
    header.key.slice = slice.id;
    if (const auto version = point_.versions.find(slice.partition.value);
        version != point_.versions.end() && !point_.epoch) {
      header.flags |= frame_flags::kVersion;
      header.clock = static_cast<Clock>(version->second);
    }
    if (point_.epoch) header.key.work = {.purpose = WorkPurpose::kEvaluate, .epoch = *point_.epoch};
    header.partition = slice.partition;
    header.view = ViewNumber(view.number());
    header.roster = RosterNumber(job_.status().roster());
    header.request_id = slice.id.value + 1;
    return header;
  }

  void OnFrame(const FrameHeader& header, const ReceivedPayload& payload) {
    if (done_ == nullptr) return;
    if (reader_->hold_for_ > absl::ZeroDuration())
      reader_->cluster_->world().After(reader_->hold_for_, reader_, [payload] {});
    if (header.type != FrameType::kValue) {
      std::string text(payload.size(), '\0');
      payload.CopyTo(text.data());
      return End(absl::AbortedError(text));
    }
    auto values = std::make_shared<Values>(header.elements);
    payload.CopyTo(values->data());
    ValuesPtr& slot = values_.slices.at(header.key.slice.value);
    if (slot == nullptr) ++arrived_;
    slot = std::move(values);
    values_.positions.at(header.key.slice.value) = header.base_lsn;
    if (arrived_ == values_.slices.size()) End(values_);
  }

  Reader* const reader_;
  const JobReply job_;
  const Layout layout_;
  const ReadPoint point_;
  ReadValues values_;
  size_t arrived_ = 0;
  std::map<std::string, std::shared_ptr<FrameStream>> streams_;  // by address
  Done done_;
};

Reader::Reader(Cluster* cluster, const std::string& process_name) : cluster_(cluster) {
  name = process_name;
  alive = true;
  life = 1;
  client_ = cluster_->streams().MakeClient(this, {PeerRole::kClient, name});
}

Reader::~Reader() {
  alive = false;
  cluster_->network().CloseAllOf(this);
}

void Reader::Read(const JobReply& job, const Layout& layout, const ReadPoint& point, Done done) {
  const auto reading = std::make_shared<Reading>(this, job, layout, point, std::move(done));
  cluster_->world().After(kReadDeadline, this, [reading] { reading->Expire(); });
  reading->Begin(*client_);
}

}  // namespace starling::sim
