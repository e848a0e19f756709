// Registration of daemons.
#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kProofOfLife = absl::Seconds(1);

bool GoodName(const std::string& name) {
  const auto good = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= limits::kNameBytesMax &&
         std::all_of(name.begin(), name.end(), good);
}

}  // namespace

std::string Core::WhyRefused(const RegisterRequest& request) const {
  if (request.role() != WORKER && request.role() != SHARD) {
    return absl::StrCat("only workers and shards register, not role ", request.role());
  }
  if (!GoodName(request.name())) {
    return absl::StrCat("a daemon's name has 1 to ", limits::kNameBytesMax,
                        " letters, digits, '-', '_' or '.'; got \"", request.name().substr(0, 200),
                        "\"");
  }
  const size_t texts =
      request.address().size() + request.host().size() + request.version().version().size();
  if (texts > limits::kAddressBytesMax) {
    return absl::StrCat(request.name(), " registers with an address, host and version of ", texts,
                        " bytes; expected at most ", limits::kAddressBytesMax, " together");
  }
  if (request.device().size() > limits::kDeviceBytesMax) {
    return absl::StrCat(request.name(), " describes its device in ", request.device().size(),
                        " bytes; expected at most ", limits::kDeviceBytesMax);
  }
  const size_t names = request.role() == WORKER ? workers_.size() : shards_.size();
  if (names >= limits::kDaemonsMax && FindByName(request.role(), request.name()) == nullptr) {
    return absl::StrCat(
        names,
        " names are in use, which is the maximum: reuse the name of a daemon that is gone, or "
        "delete jobs whose values were lost with shards");
  }
  if (request.version().protocol() != options_.protocol) {
    return absl::StrCat(
        request.name(), " has version ", request.version().version(), " and speaks protocol ",
        request.version().protocol(), "; this coordinator has version ", options_.version,
        " and speaks protocol ", options_.protocol, ": run the same version everywhere");
  }
  return "";
}

const Daemon* Core::FindByName(Role role, const std::string& name) const {
  const auto in = [&](const auto& daemons) -> const Daemon* {
    const auto it = std::find_if(daemons.begin(), daemons.end(),
                                 [&](const auto& entry) { return entry.second.name() == name; });
    return it == daemons.end() ? nullptr : &it->second;
  };
  return role == WORKER ? in(workers_) : in(shards_);
}

void Core::On(const event::Register& event) {
  const RegisterRequest& request = event.request;
  if (FindByName(request.role(), request.name()) == nullptr) MakePlaceForName(request.role());
  const std::string refused = WhyRefused(request);
  if (!refused.empty()) {
    RegisterReply reply;
    reply.set_refused(refused);
    return AnswerRegistration(std::move(reply), event.call);
  }
  const Daemon* owner = FindByName(request.role(), request.name());
  if (owner == nullptr || owner->fenced()) return Admit(request, event.call);
  const RegisterRequest& known = owner->stored.registration();
  if (known.nonce() == request.nonce()) return AnswerRegistration(*owner, event.call);
  // A port belongs to one process, so the process that registered from this address before is this
  // one or is gone.
  if (known.address() == request.address()) return Admit(request, event.call);
  // The name's owner may be alive. Its next report, or its silence, decides.
  PendingRegistration& pending = registrations_[{request.role(), request.name()}];
  if (pending.request.nonce() != request.nonce() || pending.since == absl::Time())
    pending.since = now_;
  if (pending.first == absl::Time()) pending.first = now_;
  if (pending.call != CallId()) {
    Reply(pending.call, absl::AbortedError("another registration of this name replaced this one"));
  }
  pending.call = event.call;
  pending.request = request;
}

void Core::Admit(const RegisterRequest& request, CallId call) {
  const bool is_worker = request.role() == WORKER;
  const Daemon* known = FindByName(request.role(), request.name());
  if (known == nullptr && is_worker) cluster_.set_last_worker(cluster_.last_worker() + 1);
  if (known == nullptr && !is_worker) cluster_.set_last_shard(cluster_.last_shard() + 1);
  const uint32_t id = known != nullptr ? known->id()
                      : is_worker      ? cluster_.last_worker()
                                       : cluster_.last_shard();
  Daemon* daemon = is_worker ? static_cast<Daemon*>(&workers_[id]) : &shards_[id];
  daemon->stored.set_id(id);
  if (known != nullptr && is_worker) Lose(workers_.at(id), "it was started again");
  if (known != nullptr && !is_worker) Lose(shards_.at(id), "it was started again");
  cluster_.set_last_incarnation(cluster_.last_incarnation() + 1);
  SaveCluster();

  // What is quarantined, or was blamed, is the process.
  if (is_worker && daemon->stored.registration().process() != request.process()) {
    daemon->stored.clear_quarantine();
    for (auto& [uid, job] : jobs_)
      std::erase_if(job.blamed, [id](const auto& entry) { return entry.first.second == id; });
  }
  *daemon->stored.mutable_registration() = request;
  daemon->stored.set_incarnation(cluster_.last_incarnation());
  daemon->stored.set_fenced(false);
  daemon->stored.set_left(false);
  daemon->heard = true;
  daemon->awaited = false;
  daemon->last_heard = now_;
  daemon->sequence = 0;
  if (is_worker) {
    Worker& worker = workers_.at(id);
    worker.report = WorkerReport();
    worker.told = {};
    worker.inspect_at.clear();
    Save(worker);
  } else {
    Shard& shard = shards_.at(id);
    // The views name the previous incarnation.
    shard.partitions = shard.elements = shard.planned_bytes = shard.value_bytes = 0;
    shard.told.clear();
    shard.changed.clear();
    shard.dropped.clear();
    shard.held.clear();
    shard.whole = false;
    shard.trouble.clear();
    shard.since = now_;
    shard.checkpoint_nonce = 0;
    shard.checkpoint_error.clear();
    shard.memory_room.reset();
    shard.report_by = now_ + options_.report_liveness;
    shard.steady_since = shard.trusted_until = absl::InfinitePast();
    shard.suspicion.reset();
    shard.trusted.clear();
    shard.doubt.clear();
    shard.absent.clear();
    TakeDraining(shard, false);
    Save(shard);
  }
  sentences_.push_back(absl::StrCat(request.name(), " registered from ", request.address(),
                                    ", incarnation ", daemon->stored.incarnation()));
  AnswerRegistration(*daemon, call);
  schedule_ = true;
}

void Core::AnswerRegistration(const Daemon& daemon, CallId call) {
  RegisterReply reply;
  reply.set_id(daemon.id());
  reply.set_incarnation(daemon.stored.incarnation());
  AnswerRegistration(std::move(reply), call);
}

void Core::AnswerRegistration(RegisterReply reply, CallId call) {
  reply.set_generation(generation());
  reply.set_cluster(cluster_.cluster());
  reply.mutable_version()->set_version(options_.version);
  reply.mutable_version()->set_protocol(options_.protocol);
  Reply(call, std::move(reply));
}

// Called when the owner of a name has reported or is fenced. A report may have been in flight when
// the process died, so only a report a second after the registration proves that the owner lives.
void Core::ResolveRegistration(const Daemon& owner) {
  const Role role = owner.stored.registration().role();
  auto it = registrations_.find({role, owner.name()});
  if (it == registrations_.end()) return;
  if (!owner.fenced() && now_ < it->second.since + kProofOfLife) return;
  const PendingRegistration pending = std::move(it->second);
  registrations_.erase(it);
  if (owner.fenced()) return Admit(pending.request, pending.call);
  RegisterReply reply;
  reply.set_refused(absl::StrCat("the name ", owner.name(), " is in use by a live process at ",
                                 owner.stored.registration().address(),
                                 ": choose another name, or stop that process"));
  AnswerRegistration(std::move(reply), pending.call);
}

}  // namespace starling::coordinator
